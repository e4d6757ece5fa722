// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestServicesAreTheDrivers: the spec has no section of the stage's name, so a daemon that it no longer asks for would
// never be reverted, and status would call it released.
func TestServicesAreTheDrivers(t *testing.T) {
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[driver]\nversion = \"535.261.03\"\nsource = \"distro\"\n")}))(t)
	f := facts.Facts{Live: true, Arch: "amd64", OS: facts.OS{ID: "debian", Version: "12"}, GPUs: []facts.PCI{{Vendor: "10de", Device: "2330", Class: "030200"}}, Modules: &facts.Modules{}}
	wants, err := New().Services().Wants(s, f)
	if err != nil || len(wants) == 0 {
		t.Fatalf("%d wants, %v", len(wants), err)
	}
	for _, w := range wants {
		if w.Section != "driver" {
			t.Errorf("%s %s is asked for by section %q", w.Ref().Kind, w.Ref().Name, w.Section)
		}
	}
}

// TestServicesOfAnotherKernel: daemons with a module for a kernel that does not run are enabled for the boot that starts
// it, and not started: Debian's nvidia-persistenced fails without a device.
func TestServicesOfAnotherKernel(t *testing.T) {
	f := facts.Facts{Live: true, GPUs: []facts.PCI{{Vendor: "10de", Device: "2330", Class: "030200"}, {Vendor: "10de", Device: "22a3", Class: "068000"}}}
	for running, want := range map[string]converge.State{"6.1.0-50-amd64": "enabled active", "6.18.44": "enabled inactive"} {
		f.Kernel = facts.Kernel{Running: running, Installed: []string{"6.1.0-50-amd64"}}
		wants := must.Get(ServiceWants(Services{Version: "535.261.03", Fabric: FabricOf(Load(), f), Persistenced: true, FabricManager: "auto"}, f))(t)
		units := 0
		for _, w := range wants {
			if w.Ref().Kind == "fabric" && running != "6.1.0-50-amd64" {
				t.Errorf("kernel %s: a fabric is waited for that cannot come", running)
			}
			if w.Ref().Kind != "unit" {
				continue
			}
			units++
			if to, err := w.To("disabled inactive"); to != want || err != nil {
				t.Errorf("kernel %s: %s shall be %q, %v; want %q", running, w.Ref().Name, to, err, want)
			}
		}
		if reported := len(ModuleProblems(f, facts.Modules{}, Choice{})) > 0; reported != (want == "enabled inactive") {
			t.Errorf("kernel %s: said %v", running, ModuleProblems(f, facts.Modules{}, Choice{}))
		}
		if units != 2 {
			t.Errorf("kernel %s: %d daemons, want 2", running, units)
		}
	}
}
