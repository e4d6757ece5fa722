// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// many is how often what is hostile once is there in a seed: what grows with the square of the input shows.
const many = 20_000

// simulated is a machine with one file.
func simulated(t *testing.T, name, text string) host.View {
	t.Helper()
	n, err := simhost.New(nil)
	if err == nil {
		err = n.WriteFile("/x", nil, host.Attr{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return oneFile{n, name, text}
}

type oneFile struct {
	host.View
	name, text string
}

func (o oneFile) ReadFile(name string) ([]byte, error) {
	if name == o.name {
		return []byte(o.text), nil
	}
	return o.View.ReadFile(name)
}

// FuzzRPM gives rpm's output: each package is known by a name of its own, and a key by its whole fingerprint or not at all.
func FuzzRPM(f *testing.F) {
	const key = "gpg-pubkey\t0\t5b4af876\t6b0188f4\t(none)\t1\t1\t"
	f.Add("bash\t0\t5.1\t9.el9\tx86_64\t1\t1\t(none)\n" + key + "mDMEawGI9BYJKwYBBAHaRw8BAQdA\n1v1e\n")
	f.Add(key + strings.Repeat("A\n", many))
	f.Add(strings.Repeat(key+"A\n", many))
	f.Add(strings.Repeat("\t\t\t\t\t\t\t\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			d := parseRPM(out)
			d.fill()
			for p, key := range d.keys {
				if p.name != rpmKeyName || key != nowhere && len(key) != 40 && len(key) != 64 {
					t.Errorf("the key of %v is %q", p, key)
				}
			}
			d.halfDone()
			d.doubles()
		})
	})
}

// FuzzDnf gives dnf's output: the table of a simulation, what a query found, and what scripts said.
func FuzzDnf(f *testing.F) {
	f.Add("\n Package  Arch\n===\nInstalling:\n nvlsm  x86_64  2025.06.11-1  cuda  7.6 k\n     replacing  kernel-old.x86_64 5.14.0-1.el9\n\nTransaction Summary\n")
	f.Add("\n Package \n" + strings.Repeat("Removing:\n a b c d\n replacing a.b c.\n", many))
	f.Add("\n Package " + strings.Repeat(" a\n", many))
	f.Add("a\t0\t1\t1\tx86_64\tcuda\na\\t0\\t2\\t1\\tx86_64\\tgpuadm-cuda\n")
	f.Add(strings.Repeat("a\t\t\t\tnoarch\t\n", many))
	f.Add("warning: %post(a-1-1.x86_64) scriptlet failed, exit status 10\n")
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseTable(out) {
				if m.name == "" && !strings.Contains(out, "replacing") || strings.ContainsAny(m.name, " \t\n") {
					t.Errorf("a move of %q", m.name)
				}
			}
			for name, offers := range parseOffers(out, []string{"a"}) {
				if name != "a" || len(offers) == 0 {
					t.Errorf("%q: %v", name, offers)
				}
			}
			_ = scriptsRan(out)
		})
	})
}

// FuzzVersionlock gives the list of dnf's plugin: what is locked is held, and what is unlocked is not, with all lines of others kept.
func FuzzVersionlock(f *testing.F) {
	f.Add("\n# Added lock on Fri\nkernel-0:5.14.0-427.el9.*\nnvidia-driver-cuda-libs-3:580.95.05-1.el9.*", "nvidia-driver-cuda")
	f.Add("[\n*\n!a\na-0:1-1.*", "a")
	f.Add(strings.Repeat("*a*a*a*a*b\n", 200), strings.Repeat("a", 60))
	f.Fuzz(func(t *testing.T, text, name string) {
		if name == "" || strings.ContainsAny(name, "\n\\*?[ \t\r\v\f\u0085\u00a0#!") || strings.TrimSpace(name) != name || len(name) > 100 {
			return
		}
		alloc.Most(t, 400, len(text)+len(name), func() {
			l, err := readLocks(simulated(t, lockList, text))
			if err != nil {
				t.Fatal(err)
			}
			p := rpmPackage{name, "3:580.95.05-1.el9", "x86_64"}
			ours := l.with(p)
			if !ours.holds(p) {
				t.Errorf("%q is locked and not held", name)
			}
			free, ok := ours.without(p)
			if ok == free.holds(p) {
				t.Errorf("%q is unlocked: %v, and held: %v", name, ok, free.holds(p))
			}
			for _, line := range l.lines {
				if !exactOf(line, name) && strings.TrimSpace(line) != "" && !slices.ContainsFunc(free.lines, func(at string) bool { return strings.TrimSpace(at) == strings.TrimSpace(line) }) {
					t.Errorf("line %q of others is lost", line)
				}
			}
		})
	})
}

// FuzzModuleStream gives a file of dnf's about a module, and one about repositories.
func FuzzModuleStream(f *testing.F) {
	f.Add("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=enabled\n")
	f.Add("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n")
	f.Add(strings.Repeat("[a]\n=\n", many))
	f.Add(strings.Repeat("a=", many))
	f.Fuzz(func(t *testing.T, text string) {
		alloc.Most(t, 400, len(text), func() {
			is, err := readStream(simulated(t, stream(driverModule).file(), text), driverModule)
			if err != nil || strings.ContainsAny(is, "\n") || is != "" && !strings.Contains(text, "enabled") {
				t.Errorf("%q, %v", is, err)
			}
			for _, r := range parseRepos([]byte(text)) {
				if strings.ContainsAny(r.id+r.url+r.key, "\n") {
					t.Errorf("%+v", r)
				}
			}
		})
	})
}
