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
	how := map[How]string{Entry: "verified", NoNeed: "needs no handler", After: "edited once its scripts have ended", Boot: "written after gpuadm", Render: "rendered at each start", Folder: "a file beside it"}
	for _, p := range All() {
		signs := append(append([]string{}, p.Every...), p.One...)
		if p.Snap != nil {
			signs = []string{p.Snap.Engine}
		}
		engine := p.Engine.Writer
		if engine != "" {
			engine += ": " + how[p.Engine.How]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", p.Title, signs[0], p.Join.By, engine, p.Driver.Title, p.MIG.Ends, strings.Join(p.Plugin.Units, ", "), strings.Join(p.Labels, ", "))
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
		if p.Name == "" || seen[p.Name] || p.Title == "" || len(p.Every) == 0 && p.Snap == nil {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
		if p.Join.Done != "" && (p.Join.Log == "" || len(p.Join.AtBoot) == 0) || p.Engine.How == After && p.Join.Done == "" || p.Driver.Title != "" && p.Driver.TakeOver == "" {
			t.Errorf("%s lacks a field that another of its fields requires", p.Name)
		}
		if method := p.Join.Method; method != "" && !slices.Contains(Methods(), method) {
			t.Errorf("%s joins by %s, which is no platform's name", p.Name, method)
		}
		if cmp.Or(p.Join.By, p.Join.Method) != "" && len(p.Join.Notes) == 0 && p.Name != "eks" && p.Name != "eks-hybrid" && p.Name != "gke" {
			t.Errorf("%s has no notes", p.Name)
		}
	}
}
