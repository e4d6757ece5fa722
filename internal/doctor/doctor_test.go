// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestHealthy examines every recorded machine: none is broken, so that nothing may be found.
func TestHealthy(t *testing.T) {
	hosts, err := filepath.Glob("../../test/hosts/*.txtar")
	must.That(t, err == nil && len(hosts) > 0, "%v: %v", "no recorded machines", err)
	for _, file := range hosts {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive := must.Get(os.ReadFile(file))(t)
			n := must.Get(simhost.New(archive))(t)
			r := examine(t, n)
			for _, c := range r.Causes {
				t.Errorf("%s: %v", c.Code, c.Found)
			}
			check.That(t, n.Touches() == 0 && len(n.Violations()) == 0, "doctor touched the machine: %d touches, %v", n.Touches(), n.Violations())
		})
	}
}

// TestImageLibraries: on systems that come with their driver its libraries are where containers
// find them.
func TestImageLibraries(t *testing.T) {
	for _, name := range []string{"gke-cos", "eks-bottlerocket", "talos"} {
		archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
		n, err := simhost.New(bytes.Replace(archive, []byte("[driver]\n"), []byte("[driver]\nwhy = \"it is not found\"\ncode = \"LIBRARY_NOT_FOUND\"\n"), 1))
		must.OK(t, err)
		for _, c := range examine(t, n).Causes {
			t.Errorf("%s: %s: %v", name, c.Code, c.Found)
		}
	}
}

// TestTable holds the data to its form.
func TestTable(t *testing.T) {
	known := map[string]bool{}
	for _, c := range Checks() {
		check.That(t, !known[c.Code], "%s is there twice", c.Code)
		known[c.Code] = true
		for what, text := range map[string]string{"title": c.Title, "reads": c.Reads, "meaning": c.Meaning, "fix": c.Fix, "interrupts": c.Interrupts} {
			check.That(t, text != "" && !strings.HasSuffix(text, "."), "%s: %s is %q", c.Code, what, text)
		}
		check.That(t, len(c.Sources) > 0 && c.Find != nil, "%s has no source or no Find", c.Code)
	}

	explains := map[string][]string{}
	for _, e := range Edges() {
		by, _, _ := strings.Cut(e.By, "/")
		check.That(t, known[by], "%v names a code that there is no check for", e)
		if explains, _, _ := strings.Cut(e.Explains, "/"); !known[explains] {
			t.Errorf("%v names a code that there is no check for", e)
		}
		explains[e.By] = append(explains[e.By], e.Explains)
	}

	var walk func(code string, path []string)
	walk = func(code string, path []string) {
		for _, seen := range path {
			must.That(t, seen != code, "faults explain each other in a circle: %v", append(path, code))
		}
		for _, next := range explains[code] {
			walk(next, append(path, code))
		}
	}

	for code := range explains {
		walk(code, nil)
	}
}

// TestCauses picks root causes: by the object where the edge says so, through a chain, below both
// roots of one fault.
func TestCauses(t *testing.T) {
	edges := []Edge{{
		By:       "A",
		Explains: "B",
	}, {By: "B", Explains: "C", Of: sameObject}, {By: "D", Explains: "C"}}
	of := func(code, object string) fault {
		return fault{Check{Check: faults.Check{Code: code}}, Finding{
			Object: object,
			What:   code + object,
		}}
	}

	for _, c := range []struct {
		name   string
		faults []fault
		want   string
	}{
		{"nothing", nil, ""},
		{"chain", []fault{of("A", ""), of("B", "1"), of("C", "1")}, "A[] > B1 C1"},
		{"same object", []fault{of("B", "1"), of("C", "1"), of("C", "2")}, "B[1] > C1, C[2] >"},
		{"two roots", []fault{of("B", "1"), of("C", "1"), of("D", "")}, "B[1] > C1, D[] > C1"},
		{"one check, two objects", []fault{of("B", "1"), of("B", "2"), of("C", "2")}, "B[1 2] > C2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var words []string
			found, _ := causes(c.faults, edges)
			for _, cause := range found {
				var objects, below []string
				for _, f := range cause.Found {
					objects = append(objects, f.Object)
				}
				for _, f := range cause.Explains {
					below = append(below, f.What)
				}
				words = append(words, strings.TrimSpace(cause.Code+"["+strings.Join(objects, " ")+"] > "+strings.Join(below, " ")))
			}

			check.Equal(t, strings.Join(words, ", "), c.want, "got")
		})
	}
}

// TestGenerated: K3s and RKE2 write their files after they have started, at each start: that is no
// fault.
func TestGenerated(t *testing.T) {
	for _, name := range []string{"k3s", "rke2"} {
		archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
		n := must.Get(simhost.New(archive))(t)
		f, err := facts.Gather(t.Context(), n, facts.Needs{})
		must.That(t, err == nil && len(f.Engines) > 0, "%v: %v", f.Engines, err)
		must.OK(t, n.WriteFile(f.Engines[0].Config, []byte("version = 2\n"), host.Attr{Mode: 0o644}))
		for _, c := range examine(t, n).Causes {
			t.Errorf("%s: %s: %v", name, c.Code, c.Found)
		}
	}
}

// examine examines a machine without node.toml.
func examine(t *testing.T, v host.View) Report {
	return Examine(t.Context(), v, spec.Spec{}, Own{})
}
