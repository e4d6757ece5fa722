// SPDX-License-Identifier: Apache-2.0

// Package containerd holds what real containerds make of our edits, beside what they make of
// nvidia-ctk's.
package containerd

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite table.txt")

const (
	etc    = "/etc/containerd"
	binary = "/usr/bin/nvidia-container-runtime"
)

// listed are the only reasons for which a configuration may be refused.
var listed = []containerd.Refused{
	containerd.RefusedDisabled, containerd.RefusedNames, containerd.RefusedTemplate, containerd.RefusedSyntax, containerd.RefusedVersion, containerd.RefusedShape, containerd.RefusedStart,
}

// An input is a configuration as found in the field, by paths on the machine.
type input struct {
	name  string
	files map[string][]byte
}

// inputs are ours, and those in the folder that GPUADM_TEST_CORPUS names.
func inputs(t *testing.T) []input {
	all := []input{{"00-missing", map[string][]byte{}}}
	for _, dir := range []string{"corpus", os.Getenv("GPUADM_TEST_CORPUS")} {
		if dir == "" {
			continue
		}
		entries := must.Get(os.ReadDir(dir))(t)
		for _, e := range entries {
			in := input{strings.TrimSuffix(e.Name(), ".toml"), map[string][]byte{}}
			if dir != "corpus" {
				in.name = "field/" + in.name
			}
			at := filepath.Join(dir, e.Name())
			err := filepath.WalkDir(at, func(p string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(p)
				name := "config.toml"
				if e.IsDir() {
					name, _ = filepath.Rel(at, p)
				}
				in.files[path.Join(etc, name)] = data
				return err
			})
			must.OK(t, err)
			all = append(all, in)
		}
	}

	return all
}

// tree reads an input as facts reads a machine: the root, and what it imports in the daemon's
// order.
func (in input) tree(t *testing.T, p parts.Part) containerd.Tree {
	t.Helper()
	dir := t.TempDir()
	h := must.Get(local.Open(dir))(t)
	lay := map[string][]byte{
		"/etc/os-release": []byte("ID=debian\n"), "/usr/bin/containerd": nil, "/var/lib/dpkg/info/containerd.list": []byte("/usr/bin/containerd\n"),
		"/var/lib/dpkg/status": []byte("Package: containerd\nStatus: install ok installed\nVersion: " + p.Version + "\n\n"),
	}
	maps.Copy(lay, in.files)
	for name, data := range lay {
		at := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.WriteFile(at, data, 0o755))
	}

	f := must.Get(facts.Gather(t.Context(), h, facts.Needs{}))(t)
	tree := containerd.Tree{
		Root:  containerd.File{Path: etc + "/config.toml"},
		Globs: facts.Globs(p.Version),
	}
	for _, file := range f.Engines[0].Files {
		if file.Path == tree.Root.Path {
			tree.Root.Data = file.Data
		} else {
			tree.Imports = append(tree.Imports, containerd.File{
				Path: file.Path,
				Data: file.Data,
			})
		}
	}

	return tree
}

// gpuadmEdit edits as the runtime stage does.
func gpuadmEdit(t *testing.T, in input, p parts.Part, asDefault bool) (map[string][]byte, error) {
	t.Helper()
	h := engine.Handler{Name: "nvidia", Binary: binary, Default: asDefault}
	d := containerd.Daemon{Version: p.Version}
	tree := in.tree(t, p)
	target, err := containerd.Target(tree, d, h)
	if err != nil {
		return nil, err
	}
	out, err := containerd.Edit(tree, d, h, target, in.files[target])
	if err != nil {
		return nil, err
	}
	files := maps.Clone(in.files)
	files[target] = out
	return files, nil
}

// dump lays files and asks the daemon. A root that is missing is laid empty: 1.x cannot dump
// without one, and boots with the same defaults.
func dump(t *testing.T, p parts.Part, files map[string][]byte) (map[string]any, error) {
	t.Helper()
	files = maps.Clone(files)
	if files[etc+"/config.toml"] == nil {
		files[etc+"/config.toml"] = []byte{}
	}
	got, _, err := p.Dump(t, parts.Lay(t, files))
	return got, err
}

// differs says how after is not exactly before and the handler.
func differs(before, after map[string]any, asDefault bool) string {
	b, a := parts.EffectOf(before), parts.EffectOf(after)
	var bad []string
	wantDefault := b.DefaultRuntime
	if asDefault {
		wantDefault = "nvidia"
	}
	if a.DefaultRuntime != wantDefault {
		bad = append(bad, fmt.Sprintf("default is %q, want %q", a.DefaultRuntime, wantDefault))
	}
	if s := handler(b, a.Runtimes["nvidia"]); s != "" {
		bad = append(bad, s)
	}
	for name, r := range b.Runtimes {
		if name != "nvidia" && !cmp.Equal(r, a.Runtimes[name]) {
			bad = append(bad, "runtime "+name+" changed")
		}
	}

	for name := range a.Runtimes {
		if name != "nvidia" && b.Runtimes[name] == nil && parts.Refusal(before) == nil { // a node that was down may be fixed
			bad = append(bad, "runtime "+name+" is new")
		}
	}

	if !cmp.Equal(b.EnableCDI, a.EnableCDI) {
		bad = append(bad, "enable_cdi changed")
	}
	if !cmp.Equal(b.Rest, a.Rest) {
		bad = append(bad, "something else changed")
	}
	if err := parts.Refusal(after); err != nil && parts.Refusal(before) == nil {
		bad = append(bad, "node down")
	}
	slices.Sort(bad)
	return strings.Join(bad, "; ")
}

// handler says what is wrong with the handler: it must run our binary with all the options that the
// default runtime has.
func handler(before parts.Effect, got map[string]any) string {
	if got == nil {
		return "no handler"
	}
	options, _ := got["options"].(map[string]any)
	if v := fold(options, "BinaryName"); len(v) != 1 || v[0] != binary {
		return fmt.Sprintf("handler runs %v", v)
	}
	base := before.Runtimes[before.DefaultRuntime]
	for _, name := range []string{"nvidia", "runc", "crun"} { // gpuadm's entry keeps its own
		if r := before.Runtimes[name]; name == "nvidia" && r != nil || base == nil {
			base = r
		}
	}

	if base["runtime_type"] != "io.containerd.runc.v2" {
		return ""
	}
	if got["runtime_type"] != "io.containerd.runc.v2" {
		return fmt.Sprintf("handler is of type %v", got["runtime_type"])
	}
	for key, value := range base {
		if key != "options" && !cmp.Equal(got[key], value) {
			return key + " lost"
		}
	}

	of, _ := base["options"].(map[string]any)
	for key, value := range of {
		if !strings.EqualFold(key, "BinaryName") && !slices.ContainsFunc(fold(options, key), func(v any) bool { return cmp.Equal(v, value) }) {
			return key + " lost"
		}
	}

	return ""
}

// fold returns the values of a key in any spelling: the options are decoded without regard to case.
func fold(m map[string]any, key string) (all []any) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.EqualFold(k, key) {
			all = append(all, m[k])
		}
	}
	return all
}

// outcome of our edit, judged by the daemon.
func outcome(t *testing.T, in input, p parts.Part, before map[string]any, why error, asDefault bool) string {
	t.Helper()
	files, err := gpuadmEdit(t, in, p, asDefault)
	var refusal containerd.Refused
	var told *trouble.Error
	switch {
	case errors.As(err, &refusal):
		check.That(t, slices.Contains(listed, refusal) && errors.As(err, &told) && len(told.Try) > 0, "refused for no listed reason, or without a fix: %v", err)
		return "refused: " + string(refusal)
	case err != nil:
		t.Errorf("cannot edit: %v", err)
		return err.Error()
	case before == nil && proven(t, in, p, asDefault) != nil:
		return "refused: by the daemon"
	case before == nil:
		t.Errorf("the daemon rejects the input, and we did not refuse it: %v", why)
		return "edited what the daemon rejects"
	}

	after, err := dump(t, p, files)
	if err != nil {
		t.Errorf("the daemon rejects our edit: %v", err)
		return "rejected"
	}
	s := differs(before, after, asDefault)
	if s != "" {
		t.Errorf("not exactly the handler: %s", s)
		return s
	}
	return "exact"
}

// toolkitEdit is what nvidia-ctk makes of the same.
func toolkitEdit(t *testing.T, in input, p, ctk parts.Part, before map[string]any, asDefault bool) string {
	t.Helper()
	root := parts.Lay(t, in.files)
	flags := []string{}
	if asDefault {
		flags = append(flags, "--set-as-default")
	}
	run := ctk.RunCTK(t, root, flags...)
	switch {
	case run.Exit != 0:
		return "refused"
	case before == nil:
		return "edited what the daemon rejects"
	}

	after, _, err := p.Dump(t, root)
	if err != nil {
		return "node down: rejected"
	}
	if s := differs(before, after, asDefault); s != "" {
		return s
	}
	return "exact"
}

// TestTable is the table: every input, every daemon, as default and not. Ours must be exact, or
// refused for a listed reason. table.txt has it beside what nvidia-ctk does.
func TestTable(t *testing.T) {
	all := parts.Get(t)
	rows := map[string]string{}
	var mu sync.Mutex
	t.Run("each", func(t *testing.T) {
		for _, in := range inputs(t) {
			for _, p := range all.Containerd {
				t.Run(in.name+"/"+p.Name, func(t *testing.T) {
					t.Parallel()
					before, err := dump(t, p, in.files)
					if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
						before = nil // the daemon rejects it
					} else if err != nil {
						t.Fatal(err)
					}

					row := fmt.Sprintf("%-34s %s", in.name, p.Name)
					for _, asDefault := range []bool{false, true} {
						row += fmt.Sprintf(" | %-22s | %-44s", outcome(t, in, p, before, err, asDefault), toolkitEdit(t, in, p, all.CTK, before, asDefault))
					}
					mu.Lock()
					defer mu.Unlock()
					rows[in.name+p.Name] = strings.TrimRight(row, " ")
				})
			}
		}
	})
	if os.Getenv("GPUADM_TEST_CORPUS") == "" {
		golden(t, rows)
	}
	count(t, rows)
}

func golden(t *testing.T, rows map[string]string) {
	t.Helper()
	text := "What containerd's own config dump says of the effect: gpuadm | nvidia-ctk 1.20.1; then the same, asked to be the default.\n\n"
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		text += rows[k] + "\n"
	}
	if *update {
		must.OK(t, os.WriteFile("table.txt", []byte(text), 0o644))
	}
	want, err := os.ReadFile("table.txt")
	diff := cmp.Diff(string(want), text)
	check.That(t, err == nil && diff == "", "table.txt is not what happens (-table +now), %v; if that is meant: make update\n%s", err, diff)
}

// count logs the sums of each column.
func count(t *testing.T, rows map[string]string) {
	sums := [4]map[string]int{{}, {}, {}, {}}
	for _, row := range rows {
		for i, cell := range strings.Split(row, "|")[1:] {
			kind, _, _ := strings.Cut(strings.TrimSpace(cell), ":")
			kind, _, _ = strings.Cut(kind, ",")
			if kind != "exact" && kind != "refused" && kind != "edited what the daemon rejects" {
				kind = "wrong"
			}
			if strings.Contains(cell, "node down") {
				kind = "node down"
			}
			sums[i][kind]++
		}
	}

	t.Logf("%d inputs and daemons: gpuadm %v, nvidia-ctk %v; as default: gpuadm %v, nvidia-ctk %v", len(rows), sums[0], sums[1], sums[2], sums[3])
}
