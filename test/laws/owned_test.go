// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

var update = flag.Bool("update", false, "write what is found into test/hosts/owned/reports.txtar, for a person to judge")

// TestReports: nodes as public reports describe them. Each says whose the parts are, and what a
// plan would do. A case is a folder of reports.txtar: about says where the report is, base names a
// recorded machine whose files the others replace; want is the answer.
func TestReports(t *testing.T) {
	const file = "../hosts/owned/reports.txtar"
	reports := must.Get(txtar.ParseFile(file))(t)
	at := map[string][]txtar.File{}
	for i, f := range reports.Files {
		name, rest, _ := strings.Cut(f.Name, "/")
		if rest != "want" {
			at[name] = append(at[name], txtar.File{Name: rest, Data: f.Data})
			continue
		}
		t.Run(name, func(t *testing.T) {
			got := reported(t, at[name])
			if *update {
				reports.Files[i].Data = []byte(got)
			} else {
				check.Equal(t, got, string(f.Data), "owners and plan")
			}
		})
	}

	if *update {
		must.OK(t, os.WriteFile(file, txtar.Format(reports), 0o644))
	}
}

func reported(t *testing.T, files []txtar.File) string {
	var machine, sim txtar.Archive
	toml := ""
	for _, f := range files {
		switch name, _, _ := strings.Cut(f.Name, " "); name {
		case "about":
		case "base":
			found := must.Get(filepath.Glob("../hosts/" + strings.TrimSpace(string(f.Data)) + ".txtar"))(t)
			base := must.Get(txtar.ParseFile(found[0]))(t)
			for _, of := range base.Files {
				over := slices.ContainsFunc(files, func(o txtar.File) bool {
					return strings.Fields(o.Name)[0] == strings.Fields(of.Name)[0] && o.Name != "sim.toml"
				})
				switch {
				case of.Name == "sim.toml":
					sim.Comment = append(sim.Comment, of.Data...)
				case !over:
					machine.Files = append(machine.Files, of)
				}
			}
		case "node.toml":
			toml = string(f.Data)
		case "sim.toml":
			sim.Comment = append(sim.Comment, f.Data...)
		default:
			machine.Files = append(machine.Files, f)
		}
	}

	machine.Files = append([]txtar.File{{
		Name: "sim.toml",
		Data: sim.Comment,
	}}, machine.Files...)
	boot := func() *simhost.Node { return must.Get(simhost.New(txtar.Format(&machine)))(t) }
	text := strings.ReplaceAll(ownersOf(t, boot(), toml), "; ", "\n") + "\n"
	if toml == "" {
		return text
	}
	var changes []string
	p, err := engine(t, toml).Plan(t.Context(), boot().View())
	if err != nil {
		return text + "plan: " + strings.Split(err.Error(), "\n")[0] + "\n"
	}
	for _, c := range p.Changes {
		if c.Cannot != "" {
			return text + "plan: " + strings.Split(c.Cannot, "\n")[0] + "\n"
		}
		changes = append(changes, c.Kind)
	}

	slices.Sort(changes)
	return text + "plan: " + strings.Join(slices.Compact(changes), ", ") + "\n"
}

// deaf is a machine whose GPUs change their mode at a boot alone: a reset ends well and changes
// nothing, as on Azure's A100.
type deaf struct{ *simhost.Node }

func (deaf) ResetGPUs(context.Context, ...string) error { return nil }

// TestHalfway: what gpuadm leaves until a reboot is not said to be changed outside gpuadm.
func TestHalfway(t *testing.T) {
	n := deaf{must.Get(simhost.New([]byte("-- sim.toml --\n" + passed)))(t)}
	e := engine(t, wantsMIG("\"1g\" = 7"))
	for range 2 {
		res := must.Get(e.Apply(t.Context(), n))(t)
		must.That(t, res.Reboot != "", "no reboot: %+v", res)
		s := must.Get(e.Status(t.Context(), n))(t)
		for _, m := range s.Made {
			check.That(t, !m.Changed && !m.Reverted, "%+v", m)
		}
		check.That(t, len(s.Made) > 0, "nothing was made")
	}
}
