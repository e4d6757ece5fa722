// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestChoiceIsMadeOnce: the stages of one plan choose the driver once; other facts, or another spec, choose again.
func TestChoiceIsMadeOnce(t *testing.T) {
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\n")}))(t)
	d := New()
	f := facts.Facts{OS: facts.OS{ID: "debian", Version: "12"}, Arch: "amd64", Live: true, GPUs: []facts.PCI{function("2330", "030200")}, Modules: &facts.Modules{}}
	plan := func(f facts.Facts) {
		t.Helper()
		_, _, _ = d.Choose(s, f)
		_, _ = d.Settings(s, f)
		_, _ = d.Runfile(s, f)
		_ = d.LeftAlone(s, f)
		_, _ = d.Modules(new(packages.Reading)).Wants(s, f)
		_, _ = d.Services().Wants(s, f)
	}
	const mark = "made before"
	marked := func() bool { return slices.Contains(d.last.choice.Warnings, mark) }
	for _, kernel := range []string{"6.1.0-30-amd64", "6.1.0-31-amd64"} {
		f.Kernel = facts.Kernel{Running: kernel, Installed: []string{kernel}}
		if plan(f); marked() {
			t.Errorf("no new choice for kernel %s", kernel)
		}
		d.last.choice.Warnings = append(d.last.choice.Warnings, mark)
		if plan(f); !marked() {
			t.Errorf("the choice for kernel %s was made twice", kernel)
		}
	}
	s.Driver.Version = "580.105.08"
	if plan(f); marked() {
		t.Error("no new choice after the spec has changed")
	}
}
