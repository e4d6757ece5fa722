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

// TestHeadersFollow: headers come along with a new kernel where the metapackage that brings them is of the kernel's own
// flavour and line.
func TestHeadersFollow(t *testing.T) {
	for _, test := range []struct {
		running, meta, depends string
		want                   bool
	}{
		{"6.8.0-88-generic", "linux-headers-generic", "linux-headers-6.8.0-88-generic", true},
		{"6.8.0-88-generic", "linux-headers-generic", "linux-headers-6.8.0-90-generic", true}, // upgraded, and not booted
		{"6.8.0-88-generic", "linux-headers-generic", "linux-headers-6.8.0-86-generic", false},
		{"6.8.0-88-generic", "linux-headers-generic", "", true},
		{"6.8.0-88-generic", "linux-headers-virtual", "linux-headers-6.8.0-88-generic", true},
		{"6.8.0-88-generic", "linux-headers-virtual", "", true},
		{"6.8.0-1021-aws", "linux-headers-generic", "linux-headers-6.8.0-88-generic", false},
		{"6.8.0-1021-aws", "linux-headers-generic", "", false},
		{"6.8.0-1021-aws", "linux-headers-virtual", "", false},
		{"6.8.0-1021-aws", "linux-headers-aws", "linux-headers-6.8.0-1021-aws", true},
		{"6.8.0-1021-aws", "linux-headers-aws-lts-24.04", "", true},
		{"6.8.0-1021-aws", "linux-headers-aws-64k", "", false},
		{"6.8.0-1021-azure", "linux-headers-azure-fde", "", false},
		{"6.11.0-1013-gcp", "linux-headers-gcp-edge", "", true},
		{"6.8.0-1015-nvidia", "linux-headers-nvidia-hwe-22.04", "", true},
		{"6.8.0-1015-nvidia-64k", "linux-headers-nvidia", "", false},
		{"6.8.0-1015-oracle", "linux-headers-oracle-6.8", "", true},
		{"6.8.0-88-lowlatency", "linux-headers-lowlatency-hwe-24.04-edge", "", true},
		{"6.11.0-1010-oem", "linux-headers-oem-24.04b", "", true},
		{"6.11.0-19-generic", "linux-headers-generic-hwe-24.04", "linux-headers-6.11.0-19-generic", true},
		{"6.11.0-19-generic", "linux-headers-generic", "linux-headers-6.8.0-88-generic", false}, // of the older line
		{"6.1.0-56-cloud-amd64", "linux-headers-amd64", "linux-headers-6.1.0-56-amd64 (= 6.1.192-2)", false},
		{"6.1.0-56-cloud-amd64", "linux-headers-amd64", "", false},
		{"6.1.0-56-cloud-amd64", "linux-headers-cloud-amd64", "linux-headers-6.1.0-56-cloud-amd64 (= 6.1.192-2)", true},
		{"6.1.0-56-amd64", "linux-headers-cloud-amd64", "", false},
		{"6.12.48+deb13-amd64", "linux-headers-amd64", "linux-headers-6.12.57+deb13-amd64 (= 6.12.57-1)", true},
		{"6.5.0-0.deb12.1-cloud-amd64", "linux-headers-cloud-amd64", "", true},
	} {
		status := "Package: " + test.meta + "\nStatus: install ok installed\nArchitecture: amd64\n"
		if test.depends != "" {
			status += "Depends: libc6, " + test.depends + "\nDescription: headers\n"
		}
		f := gated(status)
		f.Kernel = facts.Kernel{Running: test.running, Installed: []string{test.running}}
		wants, err := gateWants(Choice{}, spec.Driver{KernelGate: "14d"}, f)
		if err != nil || (len(wants) == 0) != test.want {
			t.Errorf("%s with %s (%s): %d wants, %v", test.running, test.meta, test.depends, len(wants), err)
		}
	}
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
