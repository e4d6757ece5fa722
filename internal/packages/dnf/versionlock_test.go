// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestLocks(t *testing.T) {
	p := rpmPackage{"nvidia-driver-cuda", "3:580.95.05-1.el9", "x86_64"}
	for line, holds := range map[string]bool{
		"nvidia-driver-cuda-3:580.95.05-1.el9.*":      true,
		"nvidia-driver-cuda-3:580.95.05-1.el9.x86_64": true,
		"nvidia-driver-cuda-0:580.95.05-1.el9.*":      false,
		"nvidia-driver-cuda-3:580.65.06-1.el9.*":      false,
		"*nvidia*580*":                                true,
		"nvidia-driver-cuda":                          true,
		"nvidia-driver":                               false,
		"!nvidia-driver-cuda-3:580.95.05-1.el9.*":     false,
		"# nvidia-driver-cuda":                        false,
		"[":                                           false,
	} {
		if got := (locks{lines: []string{line + "\n"}}).holds(p); got != holds {
			t.Errorf("%q holds: %v", line, got)
		}
	}
	const others = "\n# Added lock on Fri\nkernel-0:5.14.0-427.el9.*\nnvidia-driver-cuda-libs-3:580.95.05-1.el9.*"
	l := locks{lines: strings.SplitAfter(others, "\n")}
	ours := l.with(p)
	if got := strings.Join(ours.lines, ""); got != others+"\nnvidia-driver-cuda-3:580.95.05-1.el9.*\n" {
		t.Errorf("locked: %q", got)
	}
	free, ok := ours.without(rpmPackage{name: p.name, evr: p.evr, arch: p.arch})
	if got := strings.Join(free.lines, ""); !ok || got != others+"\n" {
		t.Errorf("unlocked: %q, %v", got, ok)
	}
	if _, ok := (locks{lines: []string{"*nvidia*\n"}}).without(p); ok {
		t.Error("a pattern of others was taken out")
	}
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
			l := must.Get(readLocks(simulated(t, lockList, text)))(t)
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

// simulated is a machine with one file.
func simulated(t *testing.T, name, text string) host.View {
	t.Helper()
	n, err := simhost.New(nil)
	if err == nil {
		err = n.WriteFile("/x", nil, host.Attr{})
	}
	must.OK(t, err)
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
