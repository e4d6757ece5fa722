// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
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

// TestHosts gathers the facts of every recorded machine and compares them with the golden files, which a person has reviewed.
func TestHosts(t *testing.T) {
	hosts, err := filepath.Glob("../../test/hosts/*.txtar")
	if err != nil || len(hosts) == 0 {
		t.Fatal("no recorded machines", err)
	}
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

func BenchmarkGatherAgain(b *testing.B) {
	n := open(b, "../../test/hosts/ubuntu24-h100.txtar")
	var c facts.Cache
	b.ReportAllocs()
	for b.Loop() {
		must.Get(c.Gather(b.Context(), n.View(), facts.Needs{}))(b)
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
