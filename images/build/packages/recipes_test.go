// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestUserData: cloud-init's own schema takes the user data, and they write files of node.d and
// nothing else.
func TestUserData(t *testing.T) {
	text := read(t, "cloud-init/user-data.yaml")
	if !strings.HasPrefix(text, "#cloud-config\n") { // what says that it is one: docs.cloud-init.io, explanation/format
		t.Error("the first line is not #cloud-config")
	}
	schema, err := jsonschema.NewCompiler().Compile("../../cloud-init/testdata/write-files.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	parsed := func(text string) (data map[string]any) {
		if err := yaml.Unmarshal([]byte(text), &data); err != nil {
			t.Fatal(err)
		}
		return data
	}

	if err := schema.Validate(any(parsed(text))); err != nil {
		t.Error(err)
	}
	misspelled := strings.Replace(text, "permissions:", "mode:", 1)
	if err := schema.Validate(any(parsed(misspelled))); err == nil {
		t.Error("the schema takes a key that cloud-init does not know")
	}
	for _, f := range parsed(text)["write_files"].([]any) {
		name := f.(map[string]any)["path"].(string)
		if filepath.Dir(name) != "/etc/gpuadm/node.d" || filepath.Ext(name) != ".toml" {
			t.Errorf("it writes %s", name)
		}
	}
}

// blocks are the types and labels of packer's blocks. Source:
// https://developer.hashicorp.com/packer/docs/templates/hcl_templates/blocks.
func blocks() map[string]int {
	return map[string]int{"packer": 0, "variable": 1, "locals": 0, "source": 2, "build": 0}
}

// TestPacker: the templates are HCL, of packer's blocks; what one names another defines. Packer
// itself has not validated them.
func TestPacker(t *testing.T) {
	names, err := filepath.Glob("../../packer/*.pkr.hcl")
	if err != nil || len(names) == 0 {
		t.Fatalf("templates: %q, %v", names, err)
	}

	parser := hclparse.NewParser()
	defined := []string{"path.root"}
	var used []string
	for _, name := range names {
		f, diagnostics := parser.ParseHCLFile(name)
		if diagnostics.HasErrors() {
			t.Fatal(diagnostics)
		}

		body := f.Body.(*hclsyntax.Body)
		for _, b := range body.Blocks {
			labels, known := blocks()[b.Type]
			if !known || labels != len(b.Labels) {
				t.Errorf("%s: packer has no block %s with %d labels", name, b.Type, len(b.Labels))
			}
			defined = append(defined, definedBy(b)...)
			if b.Type == "build" {
				used = append(used, sourcesOf(t, b)...)
			}
		}
		used = append(used, namesIn(t, body)...)
	}

	for _, name := range used {
		if !slices.Contains(defined, name) {
			t.Errorf("%s is not defined", name)
		}
	}

	isOther := func(name string) bool { return !strings.HasPrefix(name, "source.") }
	sources := slices.DeleteFunc(slices.Clone(used), isOther)
	if len(sources) != 3 {
		t.Errorf("it builds %q, want an image for each of three clouds", sources)
	}
	if !strings.Contains(read(t, "packer/provision.sh"), "gpuadm bake --gpu \"$GPU\" --seal\n") {
		t.Error("provision.sh does not bake")
	}
}

// definedBy returns the names that a block defines.
func definedBy(b *hclsyntax.Block) (names []string) {
	switch b.Type {
	case "variable":
		return []string{"var." + b.Labels[0]}
	case "source":
		return []string{"source." + strings.Join(b.Labels, ".")}
	case "locals":
		for local := range b.Body.Attributes {
			names = append(names, "local."+local)
		}
	}
	return names
}

// sourcesOf returns the sources of a block "build".
func sourcesOf(t *testing.T, build *hclsyntax.Block) (names []string) {
	t.Helper()
	sources, diagnostics := build.Body.Attributes["sources"].Expr.Value(nil)
	if diagnostics.HasErrors() {
		t.Fatal(diagnostics)
	}
	for _, s := range sources.AsValueSlice() {
		names = append(names, s.AsString())
	}
	return names
}

// namesIn returns the names in the expressions of a template, such as var.region. A name of one part
// is a type, such as string.
func namesIn(t *testing.T, body *hclsyntax.Body) (names []string) {
	t.Helper()
	diagnostics := hclsyntax.VisitAll(body, func(n hclsyntax.Node) hcl.Diagnostics {
		e, ok := n.(*hclsyntax.ScopeTraversalExpr)
		if ok && len(e.Traversal) > 1 {
			attribute := e.Traversal[1].(hcl.TraverseAttr)
			names = append(names, e.Traversal.RootName()+"."+attribute.Name)
		}
		return nil
	})
	if diagnostics.HasErrors() {
		t.Fatal(diagnostics)
	}
	return names
}

// settings are mkosi's, by section, as far as the recipe needs them.
// Sources: https://github.com/systemd/mkosi, mkosi/resources/man/mkosi.1.md and mkosi/config.py.
func settings() map[string][]string {
	return map[string][]string{
		"Distribution": {"Distribution", "Release", "Repositories"},
		"Output":       {"Format", "ImageId"},
		"Content":      {"Packages", "ExtraTrees", "PostInstallationScripts", "Bootable", "CleanPackageMetadata"},
		"Build":        {"WithNetwork"},
	}
}

// TestMkosi: the recipe has settings that mkosi knows, in their sections, and files that are there.
// mkosi itself has not run it.
func TestMkosi(t *testing.T) {
	section := ""
	for line := range strings.Lines(read(t, "mkosi/mkosi.conf")) {
		line = strings.TrimRight(line, "\n")
		if found := regexp.MustCompile(`^\[(\w+)\]$`).FindStringSubmatch(line); found != nil {
			section = found[1]
			continue
		}
		name, value, setting := strings.Cut(line, "=")
		if !setting || strings.HasPrefix(line, "#") || strings.HasPrefix(line, " ") {
			continue
		}
		if !slices.Contains(settings()[section], name) {
			t.Errorf("mkosi has no %s= in [%s]", name, section)
		}
		if name == "PostInstallationScripts" || name == "ExtraTrees" {
			from, _, _ := strings.Cut(value, ":")
			read(t, "mkosi/"+from)
		}
	}

	if !strings.Contains(read(t, "mkosi/gpuadm.postinst"), "gpuadm bake --root \"$BUILDROOT\" ") {
		t.Error("the script does not bake")
	}
}
