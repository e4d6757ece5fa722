// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func open(t testing.TB, file string) *simhost.Node {
	t.Helper()
	archive := must.Get(os.ReadFile(file))(t)
	n := must.Get(simhost.New(archive))(t)
	return n
}

// TestHosts gathers the facts of every recorded machine and compares them with the golden files,
// which a person has reviewed.
func TestHosts(t *testing.T) {
	hosts, err := filepath.Glob("../../test/hosts/*.txtar")
	must.That(t, err == nil && len(hosts) > 0, "%v: %v", "no recorded machines", err)
	for _, file := range hosts {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			n := open(t, file)
			f := must.Get(facts.Gather(t.Context(), n.View(), facts.Needs{}))(t)
			got := must.Get(json.MarshalIndent(f, "", "\t"))(t)
			got = append(append([]byte(f.String()+"\n"), got...), '\n')
			golden := filepath.Join("testdata", "hosts", name+".golden")
			if *update {
				must.OK(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				must.OK(t, os.WriteFile(golden, got, 0o644))
			}
			want := must.Get(os.ReadFile(golden))(t)
			check.None(t, cmp.Diff(string(want), string(got)), "(-want +got, -update takes it over)")
			check.That(t, n.Touches() == 0 && len(n.Violations()) == 0, "gathering facts touched the machine: %d touches, %v", n.Touches(), n.Violations())
		})
	}
}

func BenchmarkGather(b *testing.B) {
	n := open(b, "../../test/hosts/ubuntu24-h100.txtar")
	b.ReportAllocs()
	for b.Loop() {
		must.Get(facts.Gather(b.Context(), n.View(), facts.Needs{}))(b)
	}
}

// TestCache gathers twice: what the cache keeps must not show, and what may change in a run must.
func TestCache(t *testing.T) {
	n := open(t, "../../test/hosts/ubuntu24-h100.txtar")
	var c facts.Cache
	gather := func() facts.Facts {
		t.Helper()
		f := must.Get(c.Gather(t.Context(), n, facts.Needs{}))(t)
		return f
	}

	first := gather()
	other, err := c.Gather(t.Context(), open(t, "../../test/hosts/no-gpu.txtar"), facts.Needs{})
	check.That(t, err == nil && len(other.GPUs) == 0, "another machine has the first one's GPUs: %v %v", other, err)
	gather()
	check.None(t, cmp.Diff(first, gather()), "the second time it is another machine:")
	must.OK(t, n.WriteFile("/sys/bus/pci/devices/0000:18:00.0/uevent", []byte("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n"), host.Attr{Mode: 0o444}))
	must.OK(t, n.WriteFile("/etc/containerd/config.toml", []byte("version = 3\n"), host.Attr{Mode: 0o644}))
	must.OK(t, n.Mkdir("/usr/lib/modules/7.0.0-1-generic", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile("/usr/lib/modules/7.0.0-1-generic/modules.dep", nil, host.Attr{Mode: 0o644}))
	f := gather()
	switch {
	case f.GPUs[4].Driver != "nvidia":
		t.Errorf("the driver that was bound is not seen: %+v", f.GPUs[4])
	case string(f.Engines[0].Files[0].Data) != "version = 3\n":
		t.Error("the file that was written is not seen")
	case f.Kernel.Installed[0] != "7.0.0-1-generic":
		t.Errorf("the kernel that was installed is not seen: %v", f.Kernel.Installed)
	}
}

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
		{"AKS's own, built into its image", mounts + "-- opt/azure/containers/provision.complete --\n-- opt/azure/aks-gpu/dkms-marker --\ndriver_kind=cuda\n", "AKS", "/opt/azure/aks-gpu/dkms-marker is there"},
		{"AKS's marker elsewhere", mounts + "-- opt/azure/aks-gpu/dkms-marker --\ndriver_kind=cuda\n", "", ""},
		{"EKS, by archives", "-- etc/systemd/system/nvidia-kmod-load.service --\n[Service]\n", "the EKS image", "/etc/systemd/system/nvidia-kmod-load.service is there"},
		{"EKS, by trees", "-- etc/systemd/system/nvidia-setup.service --\n[Service]\n", "the EKS image", "/etc/systemd/system/nvidia-setup.service is there"},
		{"the operator on EKS' image", "-- etc/systemd/system/nvidia-setup.service --\n[Service]\n-- run/nvidia/nvidia-driver.pid --\n1\n", facts.GPUOperator, "its driver container has written /run/nvidia/nvidia-driver.pid"},
		{"ostree", mounts + "-- run/ostree-booted --\n", facts.OSTree, "/run/ostree-booted is there"},
	} {
		n := must.Get(simhost.New([]byte(test.files)))(t)
		f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Modules: true}))(t)
		got := facts.Owner{}
		if f.DriverOwner != nil {
			got = *f.DriverOwner
		}
		want := (facts.Owner{Name: test.want, Why: test.why})
		check.That(t, got == want, "%s: %+v, want %+v", test.name, got, want)
	}
}

// apt is asked which signed modules are available where a target kernel has none of the branch; a
// machine of another distribution, and lists that know of none at all, say nothing.
func TestSigned(t *testing.T) {
	const k, old = "6.8.0-45-generic", "6.8.0-41-generic"
	const name = "linux-modules-nvidia-580-server-open-"
	apt := func(out string) string {
		return "[[command]]\nargv = [\"apt-cache\", \"-o\", \"Dir::Cache::pkgcache=\", \"-o\", \"Dir::Cache::srcpkgcache=\", \"-o\", \"Dir::State::status=/dev/null\", " +
			"\"search\", \"--names-only\", \"^linux-modules-nvidia-\"]\nstdout = \"\"\"\n" + out + "\"\"\"\n"
	}

	all := apt(name + k + " - Linux kernel nvidia modules\n" + name + old + " - x\nlinux-modules-nvidia-580-open-" + k + " - x\n" + name + "generic - x\n")
	for _, x := range []struct {
		name, id, commands string
		want               []string
	}{
		{"asked", "ubuntu", all, []string{"linux-modules-nvidia-580-open-" + k, name + k}},
		{"none for the kernel", "ubuntu", apt(name + old + " - x\n"), []string{}},
		{"no lists", "ubuntu", apt(""), nil},
		{"no apt", "ubuntu", "", nil},
		{"Debian", "debian", all, nil},
	} {
		n, err := simhost.New([]byte("-- sim.toml --\n" + x.commands + "-- etc/os-release --\nID=" + x.id + "\n-- proc/sys/kernel/osrelease --\n" + k + "\n" +
			"-- lib/modules/" + k + "/modules.dep --\n-- lib/modules/" + old + "/modules.dep --\n"))
		must.OK(t, err)
		f, err := facts.Gather(context.Background(), n, facts.Needs{
			Modules: true,
			Signed:  "580",
		})
		must.OK(t, err)
		check.That(t, slices.Equal(f.Signed, x.want) && (f.Signed == nil) == (x.want == nil), "%s: %q (%t), want %q", x.name, strings.Join(f.Signed, " "), f.Signed == nil, x.want)
		if f, err = facts.Gather(context.Background(), n, facts.Needs{Modules: true}); err != nil || f.Signed != nil {
			t.Errorf("%s: not asked, and says %v, %v", x.name, f.Signed, err)
		}
	}
}

// TestCloud asks EC2 only where that is needed, and once in a run.
func TestCloud(t *testing.T) {
	f := &cloudfake.Fake{Machine: cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Name: "ip-10-0-1-2.ec2.internal", MAC: "0a:ff:c0:00:00:01",
		UserData: "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: gpus}}\n",
	}}
	n := ownImage(t)
	n.Serve("169.254.169.254", f.EC2())
	var c facts.Cache
	gather := func(needs facts.Needs) facts.Facts {
		t.Helper()
		got := must.Get(c.Gather(t.Context(), n, needs))(t)
		return got
	}

	got := gather(facts.Needs{})
	check.That(t, got.Cloud.Name == "aws" && got.Instance == nil && len(f.Requests()) == 0, "%+v %+v, asked %v", got.Cloud, got.Instance, f.Requests())
	needs := facts.Needs{Cluster: &instance.ClusterRef{}}
	first := gather(needs)
	must.That(t, first.Instance != nil && first.Instance.Type == "p5.48xlarge" && first.Instance.UserCluster.Name == "gpus" && first.Cluster == nil,
		"%+v %+v %v", first.Instance, first.Cluster, first.NoInstance)
	before := len(f.Requests())
	if got := gather(needs); got.Instance == nil || len(f.Requests()) != before {
		t.Errorf("asked again: %v", f.Requests()[before:])
	}
}

// ownImage is a machine of EC2 with an image of one's own, which no scripts of EKS make a node.
func ownImage(t *testing.T) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte("-- sys/class/dmi/id/sys_vendor --\nAmazon EC2\n")))(t)
	return n
}

// TestNoCloud keeps why no cloud answers, and does not wait for it before each stage.
func TestNoCloud(t *testing.T) {
	f := &cloudfake.Fake{}
	f.Break(cloudfake.Fault{What: "status", Status: 403})
	n := ownImage(t)
	n.Serve("169.254.169.254", f.EC2())
	var c facts.Cache
	for range 2 {
		got, err := c.Gather(t.Context(), n, facts.Needs{Cluster: &instance.ClusterRef{}})
		check.That(t, err == nil && got.Instance == nil && got.NoInstance != nil && strings.Contains(got.NoInstance.What, "turned off"),
			"%+v %v %v", got.Instance, got.NoInstance, err)
	}

	check.That(t, len(f.Requests()) == 1, "asked %v", f.Requests())
}
