// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/internal/spec"
)

func gated(status string) facts.Facts {
	return facts.Facts{
		Live: true, Kernel: facts.Kernel{Running: "6.8.0-88-generic", Installed: []string{"6.8.0-88-generic", "6.8.0-86-generic"}},
		Files: map[string][]byte{dpkgStatus: []byte(status)}, Modules: &facts.Modules{},
	}
}

// at is a machine whose clock stands still where a test puts it.
type at struct {
	host.View
	now time.Time
}

func (a at) Now() time.Time { return a.now }

func date(t *testing.T, s string) time.Time {
	t.Helper()
	d, err := time.Parse(day, s)
	if err != nil {
		t.Fatal(err)
	}
	return d.Add(13 * time.Hour)
}

func TestGateIsNeeded(t *testing.T) {
	const meta, exact, removed = "Package: linux-headers-generic\nStatus: install ok installed\n", "Package: linux-headers-6.8.0-88-generic\nStatus: install ok installed\n",
		"Package: linux-headers-generic\nStatus: deinstall ok config-files\n"
	d := spec.Driver{KernelGate: "14d"}
	for _, test := range []struct {
		name   string
		c      Choice
		status string
		want   bool
	}{
		{"headers come along", Choice{}, exact + "\n" + meta, false},
		{"no metapackage", Choice{}, exact + "\n", true},
		{"metapackage removed", Choice{}, removed + "\n" + exact, true},
		{"precompiled", Choice{Precompiled: true}, meta, true},
	} {
		wants, err := gateWants(test.c, d, gated(test.status))
		if err != nil || (len(wants) > 0) != test.want {
			t.Errorf("%s: %d wants, %v", test.name, len(wants), err)
		}
	}
	baked := gated(exact)
	baked.Live = false
	if wants, err := gateWants(Choice{}, d, baked); len(wants) > 0 || err != nil {
		t.Error("a gate in an image: its days would be over before it starts", err)
	}
	if wants, err := gateWants(Choice{}, spec.Driver{}, gated(exact)); len(wants) > 0 || err != nil {
		t.Error("a gate that nobody asked for", err)
	}
	other := gated("")
	other.Files = nil
	if _, err := gateWants(Choice{}, d, other); err == nil || !strings.Contains(err.Error(), "apt does not manage this machine") {
		t.Error(err)
	}
	other.Modules.Kernels = []facts.KernelModules{{Kernel: "5.14.0", Headers: true}}
	if wants, err := gateWants(Choice{}, d, other); len(wants) > 0 || err != nil {
		t.Error("dnf brings kernel-devel along", err)
	}
}

// TestGateLapses: its days begin once for a kernel, whenever it is looked at; then it lapses, and stays so.
func TestGateLapses(t *testing.T) {
	n, err := simhost.New([]byte("-- etc/apt/preferences.d/ --\n"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, d := context.Background(), spec.Driver{KernelGate: "14d"}
	apply := func(f facts.Facts, now string) (changed bool, text string) {
		t.Helper()
		wants, err := gateWants(Choice{}, d, f)
		if err != nil {
			t.Fatal(err)
		}
		w := wants[slices.IndexFunc(wants, func(w converge.Want) bool { return w.Kind() == "file" })]
		v := at{n, date(t, now)}
		found, err := w.Look(ctx, v)
		if err != nil {
			t.Fatal(err)
		}
		to, err := w.To(found)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := w.To(to); again != to || err != nil {
			t.Errorf("wanted twice it is %q, %v", again, err)
		}
		if to != found {
			if err := w.Make(ctx, n, to); err != nil {
				t.Fatal(err)
			}
		}
		data, err := n.ReadFile(GateFile)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(gateNotes(v), "\n")
		return to != found, string(data) + notes
	}
	f := gated("")
	steps := []struct {
		running, now string
		changed      bool
		has          string
		pins         bool
	}{
		{"6.8.0-88-generic", "2026-11-21", true, "since 2026-11-21, until 2026-12-05", true},
		{"6.8.0-88-generic", "2026-11-30", false, "held back until 2026-12-05", true},
		{"6.8.0-88-generic", "2026-12-04", false, "held back until 2026-12-05", true},
		{"6.8.0-88-generic", "2026-12-05", true, "has lapsed on 2026-12-05", false},
		{"6.8.0-88-generic", "2027-03-01", false, "has lapsed on 2026-12-05", false},
		{"6.8.0-90-generic", "2027-03-02", true, "held back until 2027-03-16", true},
	}
	for _, s := range steps {
		f.Kernel.Running = s.running
		changed, text := apply(f, s.now)
		if changed != s.changed || !strings.Contains(text, s.has) || strings.Contains(text, "Pin-Priority: -1") != s.pins {
			t.Errorf("%s %s: changed %v\n%s", s.running, s.now, changed, text)
		}
	}
	d.KernelGate = "30d"
	f.Kernel.Running = "6.8.0-90-generic"
	if changed, text := apply(f, "2027-03-03"); !changed || !strings.Contains(text, "since 2027-03-02, until 2027-04-01") {
		t.Errorf("more days: %v\n%s", changed, text)
	}
	_, text := apply(f, "2027-03-03")
	if strings.Index(text, "linux-*-6.8.0-86-*") > strings.Index(text, "linux-image-*") {
		t.Errorf("the first record that fits counts, and installed kernels come after the rest:\n%s", text)
	}
}
