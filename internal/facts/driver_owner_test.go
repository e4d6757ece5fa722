// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestDriverOwner(t *testing.T) {
	const mounts = "-- proc/self/mounts --\nproc /proc proc rw 0 0\n"
	for _, test := range []struct{ name, files, want, why string }{
		{"no owner", mounts, "", ""},
		{"validated host driver", mounts + "-- run/nvidia/validations/driver-ready --\n", "", ""},
		{"a folder, not a mount", mounts + "-- run/nvidia/driver/ --\n", "", ""},
		{"mounted", mounts + "overlay /run/nvidia/driver overlay rw 0 0\n-- run/nvidia/driver/ --\n", facts.GPUOperator, "/run/nvidia/driver is mounted, by its driver container"},
		{"mounts are not read without the folder", mounts + "overlay /run/nvidia/driver overlay rw 0 0\n", "", ""},
		{"at work", mounts + "-- run/nvidia/nvidia-driver.pid --\n4242\n", facts.GPUOperator, "its driver container has written /run/nvidia/nvidia-driver.pid"},
		{"ready", mounts + "-- run/nvidia/validations/.driver-ctr-ready --\n", facts.GPUOperator, "its driver container has written /run/nvidia/validations/.driver-ctr-ready"},
		{"AKS's own, built into its image", mounts + "-- opt/azure/containers/provision.complete --\n-- opt/azure/aks-gpu/dkms-marker --\ndriver_kind=cuda\n", facts.AKSDriver, "/opt/azure/aks-gpu/dkms-marker is there"},
		{"AKS's marker elsewhere", mounts + "-- opt/azure/aks-gpu/dkms-marker --\ndriver_kind=cuda\n", "", ""},
		{"EKS, by archives", "-- etc/systemd/system/nvidia-kmod-load.service --\n[Service]\n", facts.EKSImage, "/etc/systemd/system/nvidia-kmod-load.service is there"},
		{"EKS, by trees", "-- etc/systemd/system/nvidia-setup.service --\n[Service]\n", facts.EKSImage, "/etc/systemd/system/nvidia-setup.service is there"},
		{"the operator on EKS' image", "-- etc/systemd/system/nvidia-setup.service --\n[Service]\n-- run/nvidia/nvidia-driver.pid --\n1\n", facts.GPUOperator, "its driver container has written /run/nvidia/nvidia-driver.pid"},
		{"ostree", mounts + "-- run/ostree-booted --\n", facts.OSTree, "/run/ostree-booted is there"},
	} {
		n := must.Get(simhost.New([]byte(test.files)))(t)
		f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Modules: true}))(t)
		got := facts.DriverOwner{}
		if f.DriverOwner != nil {
			got = *f.DriverOwner
		}
		want := (facts.DriverOwner{Name: test.want, Why: test.why})
		check.That(t, got == want, "%s: %+v, want %+v", test.name, got, want)
	}
}
