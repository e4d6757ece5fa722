// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
)

// TestJoinWaitsForGPUs: where kubelet is held back until the GPUs work, an apply that waits for them does not start it.
func TestJoinWaitsForGPUs(t *testing.T) {
	machine := strings.Replace(joins.Machine, "[[unit]]", "[[gpu]]\nmodel = \"H100-80\"\n[[unit]]\nname = \"nvidia-fabricmanager.service\"\nenabled = \"enabled\"\nactive = \"active\"\n[[unit]]", 1)
	machine += "-- sys/bus/pci/devices/0000:17:00.0/uevent --\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\n"
	j := startJoin(t, machine, "")
	j.n.CUDAAnswers(func([]string) host.CUDA { return host.CUDA{Code: host.CUDASystemNotReady} })
	kubelet := func() string {
		u, err := j.n.Unit(t.Context(), "kubelet.service")
		if err != nil {
			t.Fatal(err)
		}
		return u.Active
	}
	_, err := j.whole().Apply(context.Background(), j.n)
	if !trouble.Passes(err) || !strings.Contains(err.Error(), "has not made the NVLink fabric ready") {
		t.Errorf("it waits for the fabric: %v\n%s", err, joins.Because(err))
	}
	if is := kubelet(); is == "active" {
		t.Errorf("kubelet is %s before the fabric is ready", is)
	}
	if runs := converge.ReadJournal(j.n).Runs(); len(runs) > 0 && runs[len(runs)-1].Result == "" {
		t.Errorf("the run is left open: %+v", runs)
	}
	j.n.CUDAAnswers(nil)
	if _, err := j.whole().Apply(context.Background(), j.n); !trouble.Passes(err) && err != nil {
		t.Errorf("with the fabric: %v\n%s", err, joins.Because(err))
	}
	if is := kubelet(); is != "active" {
		t.Errorf("kubelet is %s with the fabric", is)
	}
}
