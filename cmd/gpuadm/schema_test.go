// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/remote"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// answers are what the verbs print with -o json: each has a schema of its name in docs/schema.
// manifest and token print objects of Kubernetes, which has the schemas of those.
var answers = map[string]any{
	"doctor":       doctor.Report{},
	"event":        converge.Event{},
	"facts":        facts.Facts{},
	"mig-export":   migGPUs{},
	"mig-fit":      migFits{},
	"mig-generate": mig.PartedFile{},
	"mig-profiles": migModels{},
	"ending":       ending{},
	"owners":       ownerList{},
	"plan":         converge.Plan{},
	"repair":       repairList{},
	"ssh":          sshMachine{},
	"status":       converge.Status{},
	"undo-dry-run": converge.UndoPlan{},
	"validate":     validated{},
	"config":       merged{},
	"version":      versionOf{},
}

const (
	schemas = "../../docs/schema/"
	draft07 = "http://json-schema.org/draft-07/schema#"
)

// TestSchemas: docs/schema has the schema of each answer, as the Go types have it, and the schema
// of node.toml, as the spec's table has it.
func TestSchemas(t *testing.T) {
	made := map[string]*jsonschema.Schema{"node": nodeSchema(t)}
	docs := fieldDocs{}
	bytesText := &jsonschema.Schema{
		Types:           []string{"null", "string"},
		ContentEncoding: "base64",
	}
	for name, v := range answers {
		s, err := jsonschema.ForType(reflect.TypeOf(v), &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[[]byte]():          bytesText,
			reflect.TypeFor[json.RawMessage](): {},
		}})
		must.OK(t, err)
		docs.describe(t, s, reflect.TypeOf(v))
		made[name] = s
	}

	for name, s := range made {
		s.Schema, s.ID = draft07, schemaHome+name+".json"
		text, err := json.Marshal(s)
		if name == "node" { // people read it too
			text, err = json.MarshalIndent(s, "", " ")
		}
		must.OK(t, err)
		file := schemas + name + ".json"
		text = append(text, '\n')
		if *update {
			must.OK(t, os.WriteFile(file, text, 0o644))
		}
		want, err := os.ReadFile(file)
		check.That(t, err == nil && bytes.Equal(want, text), "%s is not as the code says (%v); if that is meant: make update", file, err)
	}

	files, err := filepath.Glob(schemas + "*.json")
	check.That(t, err == nil && len(files) == len(made), "%d files for %d schemas, %v: %v", len(files), len(made), err, files)
}

// nodeSchema is the schema of node.toml: each key of the spec's table with its type, default and
// meaning.
func nodeSchema(t *testing.T) *jsonschema.Schema {
	root := &jsonschema.Schema{
		Title:                "node.toml of gpuadm",
		Type:                 "object",
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
		Properties:           map[string]*jsonschema.Schema{},
	}
	for _, k := range spec.Keys() {
		at := root
		for i, name := range strings.Split(k.Section, ".") {
			if k.Section == "" {
				break
			}
			next := at.Properties[name]
			list := k.Section == "mig.gpu" && i == 1 || k.Section == "mig.gpu.placements" && i > 0
			if next == nil {
				table := &jsonschema.Schema{
					Type:                 "object",
					AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
					Properties:           map[string]*jsonschema.Schema{},
				}
				if next = table; list {
					next = &jsonschema.Schema{Type: "array", Items: table}
				}
				next.Description = spec.About(strings.Join(strings.Split(k.Section, ".")[:i+1], "."))
				at.Properties[name] = next
				at.PropertyOrder = append(at.PropertyOrder, name)
			}

			if at = next; list {
				at = next.Items
			}
		}

		at.Properties[k.Name] = keySchema(t, k)
		at.PropertyOrder = append(at.PropertyOrder, k.Name)
	}

	return root
}

// TestNodeDescribed: each table and key of node.toml's schema says what it is.
func TestNodeDescribed(t *testing.T) {
	var look func(name string, s *jsonschema.Schema)
	look = func(name string, s *jsonschema.Schema) {
		for key, p := range s.Properties {
			check.That(t, p.Description != "", "%s%s has no description", name, key)
			look(name+key+".", p)
			if p.Items != nil {
				look(name+key+".", p.Items)
			}
		}
	}

	look("", nodeSchema(t))
}

// keySchema is the schema of a key's value.
func keySchema(t *testing.T, k spec.Key) *jsonschema.Schema {
	text := func() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }
	whole := func() *jsonschema.Schema {
		return &jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(0.0)}
	}
	s, of := (*jsonschema.Schema)(nil), (*jsonschema.Schema)(nil)
	switch k.Type {
	case spec.TypeString:
		s = text()
		of = s
	case spec.TypeBool:
		s = &jsonschema.Schema{Type: "boolean"}
	case spec.TypeInt:
		s = whole()
	case spec.TypeStrings:
		of = text()
		s = &jsonschema.Schema{Type: "array", Items: of}
	case spec.TypeLabels:
		s = &jsonschema.Schema{Type: "object", AdditionalProperties: text()}
	case spec.TypeParameters:
		s = &jsonschema.Schema{
			Type:                 "object",
			AdditionalProperties: &jsonschema.Schema{Types: []string{"string", "integer", "boolean"}},
		}
	case spec.TypeCounts:
		s = &jsonschema.Schema{Type: "object", AdditionalProperties: whole()}
	case spec.TypeDevices:
		s = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Const: jsonschema.Ptr[any]("all")}, {
			Type:  "array",
			Items: whole(),
		}}}
	default:
		t.Fatalf("%s: no schema for the type %q", k.Name, k.Type)
	}

	for _, word := range k.Allowed {
		of.Enum = append(of.Enum, word)
	}
	if k.Section == "" && k.Name == "format" {
		s = &jsonschema.Schema{Const: jsonschema.Ptr[any](1)}
	}
	s.Description = k.Doc
	if k.Default != "" {
		var table struct{ V any }
		must.OK(t, toml.Unmarshal([]byte("V = "+k.Default), &table))
		var err error
		s.Default, err = json.Marshal(table.V)
		must.OK(t, err)
	}

	return s
}

// schema is a schema of docs/schema, ready to validate with.
func schema(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	text := must.Get(os.ReadFile(schemas + name + ".json"))(t)
	var s jsonschema.Schema
	must.OK(t, json.Unmarshal(text, &s))
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	must.That(t, err == nil, "%s: %v", name, err)
	return resolved
}

// TestAnswersHaveSchemas: what the verbs print with -o json is as its schema says.
func TestAnswersHaveSchemas(t *testing.T) {
	seen := map[string]bool{}
	check := func(name, out string) {
		t.Helper()
		s, lines := schema(t, name), 0
		for line := range strings.Lines(out) {
			var v any
			err := json.Unmarshal([]byte(line), &v)
			must.That(t, err == nil, "%s: %v\n%s", name, err, line)
			if err := s.Validate(v); err != nil {
				t.Errorf("%s: %v\n%s", name, err, line)
			}
			lines++
		}

		seen[name] = seen[name] || lines > 0
	}

	good := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(good, []byte("format = 1\n[driver]\nversion = \"580\"\n[runtime]\n[node]\n[[mig.gpu]]\nlayout = {\"1g.10gb\" = 7}\n"), 0o644))
	for name, archive := range recorded(t) {
		n := must.Get(simhost.New(archive))(t)
		for _, verb := range []string{"facts", "plan", "status", "owners"} {
			code, out := onHost(t, n, verb, "-o", "json", "-f", good)
			must.That(t, code != exitUsage, "%s: %s: exit code %d\n%s", name, verb, code, out)
			if as := verb; code == exitCannot && strings.HasPrefix(out, `{"format":1,"error":`) {
				check("ending", out)
			} else {
				check(as, out)
			}
		}
	}

	n, err := simhost.New(recorded(t)["debian12-containerd16"])
	must.OK(t, err)
	offline := []string{"--gpu", "H100-80GB", "-f", good, "-o", "json"}
	for name, args := range map[string][]string{
		"version": {"version", "-o", "json"}, "ending": {"plan", "-o", "json"},
		"doctor":       {"doctor", "-o", "json"},
		"repair":       {"repair", "-o", "json"},
		"validate":     append([]string{"validate", "--os", "ubuntu-24.04"}, offline...),
		"config":       {"config", good, "-o", "json"},
		"mig-fit":      append([]string{"mig", "fit"}, offline...),
		"mig-profiles": {"mig", "profiles", "--gpu", "H100-80GB", "-o", "json"}, "mig-generate": {"mig", "generate", "--gpu", "H100-80GB", "-o", "json"},
	} {
		_, out := onHost(t, n, args...)
		check(name, out)
	}

	runtime := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(runtime, []byte("format = 1\n[runtime]\n"), 0o644))
	_, out := onHost(t, n, "apply", "-o", "json", "-f", runtime)
	last := strings.LastIndex(strings.TrimSpace(out), "\n") + 1
	check("event", out[:last])
	check("ending", out[last:])
	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	_, out = onHost(t, n, "status", "-o", "json", "-f", runtime)
	if check("status", out); !strings.Contains(out, `"drift":{`) {
		t.Errorf("nothing differs: %s", out)
	}
	_, out = onHost(t, n, "undo", "--dry-run", "-o", "json")
	check("undo-dry-run", out)
	n, err = simhost.New(recorded(t)["mig-h100-a100-t4"])
	must.OK(t, err)
	_, out = onHost(t, n, "mig", "export", "-o", "json")
	check("mig-export", out)
	var all bytes.Buffer
	c := &common{env: env{stdout: &all}}
	a := sshAnswers{
		common:  c,
		answers: map[string][]json.RawMessage{"a": {rawJSON(`{"format":1}`), rawJSON("words")}},
	}
	c.output = "json"
	a.ended(remote.Result{Host: "a"})
	a.ended(remote.Result{
		Host:    "b",
		Err:     errors.New("no way"),
		Because: []string{"x"},
	})
	check("ssh", all.String())
	for name := range answers {
		if !seen[name] {
			t.Errorf("no answer was compared with the schema %s", name)
		}
	}
}

// TestTextIsMadeOfJSON: what a verb prints as text is its -o json rendered, so the two cannot say
// different things.
func TestTextIsMadeOfJSON(t *testing.T) {
	good := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(good, []byte("format = 1\n[driver]\nversion = \"580\"\n[runtime]\n[node]\n"), 0o644))
	check := func(n *simhost.Node, render func(c *common, out []byte) error, args ...string) {
		t.Helper()
		var all strings.Builder
		c := &common{
			env:     env{getenv: func(string) string { return "" }},
			rootDir: "/",
			files:   []string{good},
			verbose: slices.Contains(args, "-v"),
		}
		c.stdout = c.screen(&all)
		c.stderr = c.stdout
		code, out := onHost(t, n, append(args, "-f", good, "-o", "json")...)
		_, text := onHost(t, n, append(args, "-f", good)...)
		if strings.HasPrefix(out, `{"format":1,"error":`) {
			render = rendered(func(c *common, f ending) { f.print(c.env) })
		}
		if strings.Contains(out, `"notes":["no NVIDIA GPU on the PCI bus: nothing to do here"]`) && text == "No NVIDIA GPU on the PCI bus: nothing to do here.\n" {
			return // in one line, for the log of a pod in a mixed pool
		}
		if err := render(c, []byte(out)); err != nil || all.String() != text || text == "" {
			t.Errorf("%q, exit code %d: %v; as JSON it says\n%s\nand as text\n%s", args, code, err, &all, text)
		}
	}

	verbs := map[string]func(c *common, out []byte) error{
		"facts": rendered((*common).factsText), "plan": rendered((*common).planText), "owners": rendered((*common).ownersText),
		"status": rendered(func(c *common, s converge.Status) { c.statusText(s, time.Time{}, false) }),
	}
	for _, archive := range recorded(t) {
		n := must.Get(simhost.New(archive))(t)
		for verb, render := range verbs {
			check(n, render, verb)
		}
	}

	n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
	onHost(t, n, "apply", "runtime", "-f", good)
	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	check(n, verbs["plan"], "plan", "-v")
	check(n, rendered((*common).doctorText), "doctor", "-v")
	check(n, rendered(func(c *common, p converge.UndoPlan) {
		c.undoPlanText(p, undoFlags{})
	}), "undo", "--dry-run")
	check(n, rendered((*common).repairsText), "repair")
	check(n, rendered((*common).validText), "validate", "--os", "ubuntu-24.04", "--gpu", "H100-80GB")
	check(n, rendered(func(c *common, s converge.Status) {
		c.statusText(s, time.Unix(1, 0), true)
	}), "status", "--diff", "--since", "2000-01-01")
	must.OK(t, os.WriteFile(good, []byte("format = 1\n[[mig.gpu]]\nlayout = {\"1g.10gb\" = 7}\n"), 0o644))
	check(n, rendered(func(c *common, m migFits) {
		c.migFitText(m.Fits)
	}), "mig", "fit", "--gpu", "H100-80GB")
	must.OK(t, os.WriteFile(good, []byte("format = 1\n\t[runtime]\nwrong = 1\n"), 0o644))
	check(n, nil, "plan")
}

// rendered decodes an answer and has it printed as text.
func rendered[T any](text func(*common, T)) func(*common, []byte) error {
	return func(c *common, out []byte) error {
		var answer T
		err := json.Unmarshal(out, &answer)
		if err == nil {
			text(c, answer)
		}
		return err
	}
}

// TestSpecHasSchema: the schema of node.toml takes what the parser takes, and refuses unknown keys
// and wrong types as it does.
func TestSpecHasSchema(t *testing.T) {
	s := schema(t, "node")
	judge := func(text string) error {
		var v map[string]any
		err := toml.Unmarshal([]byte(text), &v)
		must.That(t, err == nil, "%v\n%s", err, text)
		asJSON := must.Get(json.Marshal(v))(t)
		var plain any
		must.OK(t, json.Unmarshal(asJSON, &plain))
		return s.Validate(plain)
	}

	names, err := filepath.Glob("../../docs/examples/*/values.yaml")
	must.That(t, err == nil && len(names) >= 4, "%d examples, %v", len(names), err)
	for _, name := range names {
		var values struct {
			NodeToml string `yaml:"nodeToml"`
		}
		if data, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if err := yaml.Unmarshal(data, &values); err != nil {
			t.Fatal(err)
		}

		err := judge(values.NodeToml)
		check.That(t, err == nil, "%s: %v", name, err)
	}

	wrong := map[string]string{
		spec.TypeString: "1", spec.TypeBool: `"yes"`, spec.TypeInt: `"1"`, spec.TypeStrings: `[1]`, spec.TypeLabels: `{ a = 1 }`,
		spec.TypeParameters: `{ a = [1] }`, spec.TypeCounts: `{ "1g.10gb" = "1" }`, spec.TypeDevices: `"some"`,
	}
	for _, k := range spec.Keys() {
		header := map[bool]string{
			true:  "[[" + k.Section + "]]",
			false: "[" + k.Section + "]",
		}[strings.HasPrefix(k.Section, "mig.gpu")]
		if k.Section == "mig.gpu.placements" {
			header = "[[mig.gpu]]\n" + header
		}
		if k.Section == "" {
			continue
		}
		if k.Default != "" && k.Section != "mig.gpu.placements" {
			text := "format = 1\n" + header + "\n" + k.Name + " = " + k.Default + "\n"
			err := judge(text)
			check.That(t, err == nil, "the schema refuses a default: %v\n%s", err, text)
		}

		bad := []string{k.Name + " = " + wrong[k.Type], k.Name + "x = 1"}
		if len(k.Allowed) > 0 {
			word := strconv.Quote(k.Allowed[0] + "x")
			if k.Type == spec.TypeStrings {
				word = "[" + word + "]"
			}
			bad = append(bad, k.Name+" = "+word)
		}

		for _, line := range bad {
			text := "format = 1\n" + header + "\n" + line + "\n"
			_, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)})
			check.That(t, err != nil, "the parser takes it:\n%s", text)
			check.That(t, judge(text) != nil, "the schema takes it:\n%s", text)
		}
	}

	check.That(t, judge("format = 1\n[drivers]\n") != nil && judge("format = 2\n") != nil && judge("format = 1\nversion = 1\n") != nil,
		"the schema takes an unknown section, format or key")
	check.That(t, slices.Contains([]string{draft07}, s.Schema().Schema), "it is of %s", s.Schema().Schema)
}
