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
	now  time.Time
	read *int // counts parts of apt's lists that were read
}

func (a at) ReadAt(name string, p []byte, off int64) (int, error) {
	if strings.HasPrefix(name, "/var/lib/apt/lists/") {
		*a.read++
	}
	return a.View.ReadAt(name, p, off)
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

// gateApply makes the gate as apply does, and returns the file and what is noted.
func gateApply(t *testing.T, n *simhost.Node, c Choice, d spec.Driver, f facts.Facts, now string) (changed bool, file, notes string) {
	t.Helper()
	ctx := context.Background()
	wants, err := gateWants(c, d, f)
	if err != nil {
		t.Fatal(err)
	}
	w := wants[slices.IndexFunc(wants, func(w converge.Want) bool { return w.Kind() == "file" })]
	if !w.AsFound {
		t.Fatal("the gate is decided without what it said before: its days would begin anew each day")
	}
	read := 0
	v := at{n, date(t, now), &read}
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
		read = 0
		if made, err := w.Look(ctx, v); made != to || err != nil || read != 0 {
			t.Errorf("made it is %q, not %q, %v; %d parts of lists were read that are known", made, to, err, read)
		}
	}
	if wanted, err := w.To(to); wanted != to || err != nil {
		t.Errorf("looked at again it is wanted as %q, %v", wanted, err)
	}
	data, err := n.ReadFile(GateFile)
	if err != nil {
		t.Fatal(err)
	}
	return to != found, string(data), strings.Join(gateNotes(v), "\n")
}

// TestGateLapses: its days begin once for a kernel, whenever it is looked at; then it lapses, and stays so.
func TestGateLapses(t *testing.T) {
	n, err := simhost.New([]byte("-- etc/apt/preferences.d/ --\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := spec.Driver{KernelGate: "14d"}
	apply := func(f facts.Facts, now string) (changed bool, text string) {
		t.Helper()
		changed, file, notes := gateApply(t, n, Choice{}, d, f, now)
		return changed, file + notes
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
	if strings.Index(text, "linux-*-6.8.0-86-*") > strings.Index(text, "linux-image-[0-9]*") {
		t.Errorf("the first record that fits counts, and installed kernels come after the rest:\n%s", text)
	}
}

// TestGateLetsThrough: a newer kernel comes as soon as apt's lists have what it gets its module with; others are held back,
// and it is said which, why and until when. Lists that change no kernel's fate change nothing.
func TestGateLetsThrough(t *testing.T) {
	const running = "6.8.0-88-generic"
	signed := Choice{Precompiled: true, Members: []Member{
		{Name: "nvidia-utils-580-server", Role: "utils"},
		{Name: "linux-modules-nvidia-580-server-open-" + running, Role: "module", PerKernel: running},
	}}
	built := Choice{Members: []Member{{Name: "dkms", Role: "module"}, {Name: "linux-headers-" + running, Role: "headers", PerKernel: running}}}
	images := []string{
		"linux-image-6.8.0-84-generic", "linux-image-" + running, "linux-image-6.8.0-90-generic", "linux-image-unsigned-6.8.0-90-generic",
		"linux-image-6.8.0-91-lowlatency", "linux-image-6.8.0-1022-aws", "linux-image-generic", "linux-image-6.8.0-90-generic-dbg",
	}
	for _, x := range []struct {
		name  string
		c     Choice
		other []string // what changes nothing
		with  string
	}{
		{"signed modules", signed, []string{
			"linux-modules-nvidia-580-server-6.8.0-90-generic", "linux-modules-nvidia-570-server-open-6.8.0-90-generic",
			"linux-modules-nvidia-580-server-open-generic", "linux-headers-6.8.0-90-generic", "linux-modules-nvidia-580-server-open-6.8.0-91-lowlatency",
		}, "linux-modules-nvidia-580-server-open-"},
		{"DKMS", built, []string{"linux-headers-generic", "linux-headers-6.8.0-90", "linux-headers-6.8.0-91-lowlatency", "linux-modules-nvidia-580-server-open-6.8.0-90-generic"}, "linux-headers-"},
	} {
		t.Run(x.name, func(t *testing.T) {
			n, err := simhost.New([]byte("-- etc/apt/preferences.d/ --\n-- var/lib/apt/lists/ --\n"))
			if err != nil {
				t.Fatal(err)
			}
			list := func(name string, names ...string) {
				t.Helper()
				text := ""
				for _, p := range names {
					text += "Package: " + p + "\nVersion: 1\n\n"
				}
				if err := n.WriteFile("/var/lib/apt/lists/"+name+"_Packages", []byte(text), host.Attr{Mode: 0o644}); err != nil {
					t.Fatal(err)
				}
			}
			f := gated("")
			step := func(c Choice, now string, change bool, through, held, note string) {
				t.Helper()
				changed, file, notes := gateApply(t, n, c, spec.Driver{KernelGate: "14d"}, f, now)
				if changed != change || !strings.Contains(file, "KERNEL:"+through+"\n# held back:"+held+"\n") || !strings.Contains(notes, note) {
					t.Errorf("%s: changed %t; want %t, let through%s, held back%s\n%s\n%s; want %q", now, changed, change, through, held, file, notes, note)
				}
				for k := range strings.FieldsSeq(through) {
					if build := strings.TrimSuffix(k, "-generic"); !strings.Contains(file, "\nPackage: linux-*-"+build+" linux-*-"+build+"-*\nPin: release *\nPin-Priority: 500\n") {
						t.Errorf("%s: apt does not let %s through:\n%s", now, k, file)
					}
				}
				if strings.Count(file, "Pin-Priority: 500") != len(f.Kernel.Installed)+len(strings.Fields(through)) || strings.Contains(file, "linux-image-generic") {
					t.Errorf("%s: apt lets through more than that, or holds a metapackage:\n%s", now, file)
				}
			}
			step(x.c, "2026-11-21", true, "", "", "newer kernels are held back until 2026-12-05 where no source has "+x.with+"KERNEL")
			list("main", "linux-image-"+running)
			step(x.c, "2026-11-22", false, "", "", "")
			list("main", images...)
			step(x.c, "2026-11-22", true, "", " 6.8.0-90-generic", "kernel 6.8.0-90-generic is held back until 2026-12-05, its security fixes too: no source had "+x.with+"6.8.0-90-generic")
			list("other", x.other...)
			step(x.c, "2026-11-23", false, "", " 6.8.0-90-generic", "6.8.0-90-generic is held back")
			list("restricted", x.with+"6.8.0-90-generic", x.with+running)
			step(x.c, "2026-11-24", true, " 6.8.0-90-generic", "", "newer kernels are held back until 2026-12-05")
			list("main", append(images, "linux-image-6.8.0-92-generic", "linux-image-6.11.0-19-generic")...)
			list("restricted", x.with+"6.11.0-19-generic")
			step(x.c, "2026-11-25", true, " 6.11.0-19-generic 6.8.0-90-generic", " 6.8.0-92-generic", "kernel 6.8.0-92-generic is held back")
			other := x.c // another driver's modules: what the lists have of those is not known yet
			other.Members = []Member{{Name: "linux-modules-nvidia-590-" + running, Role: "module", PerKernel: running}}
			other.Precompiled = true
			step(other, "2026-11-26", true, "", " 6.11.0-19-generic 6.8.0-90-generic 6.8.0-92-generic", "no source had linux-modules-nvidia-590-6.11.0-19-generic")
			f.Kernel.Installed = append([]string{"6.8.0-90-generic"}, f.Kernel.Installed...)
			step(other, "2026-11-26", true, "", " 6.11.0-19-generic 6.8.0-92-generic", "6.8.0-92-generic is held back")
		})
	}
}
