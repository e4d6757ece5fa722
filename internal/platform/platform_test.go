// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/platforms.md")

const page = "../../docs/platforms.md"

// TestPage holds docs/platforms.md against the register.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Who owns what on my platform\n\nGenerated from internal/platform. An empty cell is the machine's own, and gpuadm's where node.toml asks for it.\n\n" +
		"| platform | known by | joins the machine | engine's configuration | driver | partitions | offers GPUs | its labels |\n|---|---|---|---|---|---|---|---|\n")
	ways := map[How]string{
		Entry:  "verified",
		NoNeed: "needs no handler",
		After:  "edited once its scripts have ended",
		Boot:   "written after gpuadm",
		Render: "rendered at each start",
		Folder: "a file beside it",
	}
	written := func(e Engine) string {
		if e.Writer == "" {
			return ""
		}
		return e.Writer + ": " + ways[e.How]
	}
	for _, p := range All() {
		signs := slices.Concat(p.Every, p.One, p.Units)
		if p.Snap != nil {
			signs = []string{p.Snap.Engine}
		}
		plugin := slices.Clone(p.Plugin.Units)
		if p.Plugin.Off != "" {
			plugin = append(plugin, "its plugin, but with the label "+p.Plugin.Off+"=true")
		}
		row := []string{
			p.Title, signs[0], p.Join.By, written(p.Engine), p.Driver.Title, p.MIG.Ends,
			strings.Join(plugin, ", "), strings.Join(p.Labels, ", "),
		}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	b.WriteString("\nOperating systems whose makers provide them as a whole, " +
		"where no platform above writes the engine's configuration:\n\n" +
		"| known by | engine's configuration | what gpuadm cannot do there |\n|---|---|---|\n")
	for _, s := range Systems() {
		fmt.Fprintf(&b, "| ID=%s in os-release | %s | %s |\n", s.ID, written(s.Engine), s.Limit)
	}
	b.WriteString("\nNodes that gpuadm cannot prepare, since their owners provide them as a whole:\n\n" +
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
		hasSign := len(p.Every) > 0 || p.Snap != nil || p.Units != nil
		if p.Name == "" || seen[p.Name] || p.Title == "" || !hasSign {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
		isClosed := p.Join.Method == p.Name && p.Join.Method != "" && p.Name != "eks"
		if isClosed && (len(p.Join.Looked) == 0 || len(p.Join.Try) == 0) {
			t.Errorf("%s does not say what a machine that is none of its own lacks", p.Name)
		}
		if p.Join.Done != "" && (p.Join.Log == "" || len(p.Join.AtBoot) == 0) || p.Engine.How == After && p.Join.Done == "" || p.Driver.Title != "" && p.Driver.TakeOver == "" {
			t.Errorf("%s lacks a field that another of its fields requires", p.Name)
		}
		if method := p.Join.Method; method != "" && !slices.Contains(Methods(), method) {
			t.Errorf("%s joins by %s, which is no platform's name", p.Name, method)
		}
		isEKS := p.Name == "eks" || p.Name == "eks-hybrid" // cloud/eks has their notes
		if cmp.Or(p.Join.By, p.Join.Method) != "" && len(p.Join.Notes) == 0 && !isEKS {
			t.Errorf("%s has no notes", p.Name)
		}
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
