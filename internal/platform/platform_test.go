// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

var update = flag.Bool("update", false, "write docs/who-owns-what.md")

const page = "../../docs/who-owns-what.md"

// writes says who writes an engine's configuration, and how.
func writes(e Engine) string {
	ways := map[How]string{
		Entry:  "gpuadm only verifies it",
		NoNeed: "pods need no handler",
		After:  "gpuadm edits it when its scripts have ended",
		Boot:   "writes it at each boot, after gpuadm",
		Render: "renders it at each start",
		Folder: "gpuadm adds a file next to it",
		Rooted: "writes it from a template at each bootstrap; gpuadm edits both",
	}
	how := cmp.Or(e.Made, ways[e.How])
	if e.Writer == "" {
		return how
	}
	return e.Writer + ": " + how
}

// brings says who brings a driver, and where not.
func brings(d Driver) string {
	if d.Not == "" {
		return d.Title
	}
	return d.Title + "; none " + d.Not
}

// offers says who offers GPUs to kubelet.
func offers(p Plugin) string {
	switch {
	case len(p.Units) > 0:
		return p.Who + ": " + strings.Join(p.Units, ", ")
	case p.Off != "":
		return p.Who + ", but with the label " + p.Off + "=true"
	}
	return p.Who
}

// cuts says who partitions GPUs, and when.
func cuts(m MIG) string {
	if m.Ends == "" {
		return ""
	}
	return m.Who + ": " + m.Ends
}

// TestPage holds docs/who-owns-what.md against the register.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Who owns what\n\n" +
		"On many nodes other tools own some parts. This page says which. " +
		"`gpuadm owners` names the owners on a machine, with the evidence: " +
		"the unit, the pod, the file or the registration with kubelet.\n\n" +
		"An empty cell means that the part has no other owner: gpuadm manages it if node.toml asks for it. " +
		"This page is generated from internal/platform.\n\n" +
		"| node | driver | toolkit | engine's configuration | kubelet's files | partitions | offers GPUs |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, n := range Nodes() {
		row := []string{
			n.Name, brings(n.Driver), n.Toolkit, writes(n.Engine), n.Kubelet, cuts(n.MIG), offers(n.Plugin),
		}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}

	b.WriteString("\nTo have gpuadm manage a driver that another owner has installed:\n\n" +
		"| driver of | what to do |\n|---|---|\n")
	var told []string
	for _, n := range Nodes() {
		if n.Driver.TakeOver == "" || slices.Contains(told, n.Driver.Title) {
			continue
		}
		told = append(told, n.Driver.Title)
		how := strings.TrimPrefix(n.Driver.TakeOver, "or take it over: ")
		fmt.Fprintf(&b, "| %s | %s |\n", n.Driver.Title, how)
	}

	b.WriteString("\n## How gpuadm recognises a platform\n\n" +
		"| platform | recognised by | who joins the machine | its labels |\n|---|---|---|---|\n")
	for _, p := range All() {
		signs := slices.Concat(p.Every, p.One, p.Units)
		if p.Snap != nil {
			signs = append(signs, cmp.Or(p.Snap.Engine, p.Snap.Kubelet))
		}
		row := []string{p.Title, signs[0], p.Join.By, strings.Join(p.Labels, ", ")}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}

	b.WriteString("\nOperating systems that are sealed or managed as a whole, " +
		"if no platform above writes the engine's configuration:\n\n" +
		"| recognised by | engine's configuration | what gpuadm cannot do there |\n|---|---|---|\n")
	for _, s := range Systems() {
		fmt.Fprintf(&b, "| ID=%s in os-release | %s | %s |\n", s.ID, writes(s.Engine), s.Limit)
	}
	b.WriteString("\nNodes that gpuadm cannot prepare, since their owners manage them as a whole:\n\n" +
		"| node | why | what to use |\n|---|---|---|\n")
	for _, s := range AllSealed() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.Name, s.Why, s.Use)
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if found, err := os.ReadFile(page); err != nil || string(found) != b.String() {
		t.Fatalf("%s is old: go test ./internal/platform -update (%v)", page, err)
	}
}

// TestNodes: what has an owner says who that is; a unit or a label by which gpuadm finds the owner, and
// what ends its claim, are never without a name.
func TestNodes(t *testing.T) {
	for _, n := range Nodes() {
		m, p := n.MIG, n.Plugin
		signs := m.Unit || m.Label != "" || m.File != ""
		if (m.Who == "") != (m.Ends == "") || signs && m.Who == "" {
			t.Errorf("%s: partitions: %+v", n.Name, m)
		}
		hasPlugin := len(p.Units) > 0 || p.Off != ""
		if (p.Who == "") != (p.Ends == "") || hasPlugin && p.Who == "" {
			t.Errorf("%s: plugin: %+v", n.Name, p)
		}
		if n.Name == "" || n.ID == "" && n.System == "" && n.Kubelet == "" {
			t.Errorf("%+v", n)
		}
	}
}

// TestChart: the clouds of the chart are platforms that join nodes, or onprem.
func TestChart(t *testing.T) {
	data, err := os.ReadFile("../../images/chart/values.schema.json")
	var schema struct {
		Properties struct{ Cloud struct{ Enum []string } }
	}
	if err == nil {
		err = json.Unmarshal(data, &schema)
	}
	if err != nil || len(schema.Properties.Cloud.Enum) == 0 {
		t.Fatalf("%+v, %v", schema, err)
	}
	for _, cloud := range schema.Properties.Cloud.Enum {
		if cloud != "onprem" && !slices.Contains(Methods(), cloud) {
			t.Errorf("the chart has a cloud %s, and internal/platform has none with this name", cloud)
		}
	}
}

// TestRegister: each platform has a name of its own, a title and a sign; what waits for scripts
// says for which, and where their log is.
func TestRegister(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range All() {
		t.Run(p.Name, func(t *testing.T) {
			check.That(t, p.Name != "" && !seen[p.Name], "the name is empty, or another platform has it")
			check.That(t, p.Title != "", "it has no title")
			hasSign := len(p.Every) > 0 || p.Snap != nil || p.Units != nil
			check.That(t, hasSign, "it has no sign by which a machine shows it")
			hasWholeRow(t, p)
		})
		seen[p.Name] = true
	}
}

// hasWholeRow checks that a platform has each field that another of its fields requires.
func hasWholeRow(t *testing.T, p Platform) {
	t.Helper()
	method := p.Join.Method
	isEKS := p.Name == "eks" || p.Name == "eks-hybrid" // cloud/eks has their notes and refusals

	if method != "" {
		check.That(t, slices.Contains(Methods(), method), "it joins by %s, which is not a platform's name", method)
	}
	if method == p.Name && !isEKS {
		saysWhatIsMissing := len(p.Join.Looked) > 0 && len(p.Join.Try) > 0
		check.That(t, saysWhatIsMissing, "it does not say what a machine lacks that is not one of its nodes")
	}
	check.That(t, p.Join.Own == (p.Join.Token != ""), "a kubelet that gpuadm sets up logs in by a token, and no other kubelet")
	if cmp.Or(p.Join.By, method) != "" && !isEKS {
		check.That(t, len(p.Join.Notes) > 0, "it has no notes")
	}

	if p.Join.Settings != "" {
		says := p.Join.Unit != "" && path.Base(p.Join.UnitFile) == p.Join.Unit && p.Join.Resolved != ""
		check.That(t, says, "it reads gpuadm's settings, and nothing says by which unit, or where it keeps what it has resolved")
	}
	if p.Join.Done != "" {
		check.That(t, p.Join.Log != "", "its scripts have no log")
		check.That(t, len(p.Join.AtBoot) > 0, "nothing says what runs its scripts at boot")
	}
	if p.Engine.How == After {
		check.That(t, p.Join.Done != "", "its engine comes after scripts, and nothing says when they are done")
	}
	if p.Driver.Title != "" {
		check.That(t, p.Driver.TakeOver != "", "nothing says how gpuadm can take over its driver")
	}
}

// TestSystems: a system has an engine's writer of its own name, and a sealed kind of node has a
// sign, its reason and what to use.
func TestSystems(t *testing.T) {
	for _, s := range Systems() {
		isFound := SystemOf(s.ID).ID == s.ID && EngineOf(s.ID).How == s.Engine.How
		if s.ID == "" || !isFound || s.Engine.Writer != s.ID {
			t.Errorf("%+v", s)
		}
	}

	for _, s := range AllSealed() {
		signs := s.System + s.Platform + s.Label + s.Host
		halfSign := (s.Host != "") != (s.HostWhy != "") || (s.Label != "") != (s.Value != "")
		if s.Name == "" || signs == "" || s.Why == "" || s.Use == "" || halfSign {
			t.Errorf("%+v", s)
		}
		if SystemOf(s.System).ID != s.System || Of(s.Platform).Name != s.Platform {
			t.Errorf("%s is of a system or a platform that is not in the register", s.Name)
		}
	}
}
