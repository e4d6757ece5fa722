// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// ctkDaemonJSON is Docker's file.
const ctkDaemonJSON = "/etc/docker/daemon.json"

// ctkResult is what a tool made of an input.
type ctkResult struct {
	refused string // the error
	files   map[string][]byte
	out     bool // the tool takes its edit out, byte for byte

	lost           []string // what did not survive in the owner's files
	wrong          []string // what is otherwise in the engine's eyes
	added, removed int      // lines
}

// TestBesideCTK makes the table for Docker and CRI-O that test/containerd/table.txt is for
// containerd: what gpuadm and nvidia-ctk make of the same files. gpuadm may be worse in no row. The
// effect is what a reader of the whole configuration sees: encoding/json for Docker, and those of
// readFiles, which are CRI-O's, for CRI-O.
func TestBesideCTK(t *testing.T) {
	ctk := parts.Get(t, parts.CTK).CTK
	help := ctk.Configure(t, "/", "--help")
	must.That(t, help.Exit == 0, "nvidia-ctk: %s", help.Stderr)
	text := "What gpuadm | nvidia-ctk " + ctk.Version + " make of the same files: lines added and removed; what survives in the owner's files\n" +
		"(keys, order, comments, integers, layout); the effect beside the handler that was asked for; whether the tool takes it out again.\n\n"
	for _, kind := range []string{"docker", "crio"} {
		inputs := dockerInputs(t)
		if kind == "crio" {
			inputs = crioInputs(t)
		}
		for _, in := range inputs {
			for _, asDefault := range []bool{false, true} {
				h := engine.Handler{
					Name:    "nvidia",
					Binary:  engine.Binary,
					CDI:     kind == "docker",
					Default: asDefault,
				}
				ours, theirs := gpuadmResult(t, kind, in, h), toolkitResult(t, ctk, kind, in, h)
				for _, r := range []*ctkResult{&ours, &theirs} {
					r.judge(kind, in, h)
				}
				row := fmt.Sprintf("%-6s %-19s %-7s", kind, in.name, map[bool]string{true: "default"}[asDefault])
				for _, bad := range ours.worse(theirs) {
					t.Errorf("%s: gpuadm %s", row, bad)
				}
				text += fmt.Sprintf("%s | %s | %s\n", row, ours, theirs)
			}
		}
	}

	const golden = "testdata/ctk/table.txt"
	if *update {
		must.OK(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	want, err := os.ReadFile(golden)
	d := cmp.Diff(string(want), text)
	check.That(t, err == nil && d == "", "%s is not what happens (-table +now), %v; if that is meant: make update\n%s", golden, err, d)
}

// gpuadmResult edits as the runtime stage does, and takes the edit out.
func gpuadmResult(t *testing.T, kind string, in ctkInput, h engine.Handler) (r ctkResult) {
	t.Helper()
	target, takeOut := ctkDaemonJSON, docker.TakeOut
	if kind == "crio" {
		target, takeOut = crioFolder+"/"+dropIn, engine.TakeOut
	}
	r.files = in.byPath()
	found := r.files[target]
	var edited []byte
	var err error
	if kind == "crio" {
		edited, err = editFile(in.files, in.version, h, target, found)
	} else {
		edited, err = docker.Edit(target, in.version, h, found)
	}

	if err != nil {
		r.refused = err.Error()
		return r
	}
	// What takes an edit out of a file that changed since; a file that did not change is restored
	// from the journal. It goes by values, so of a file without a byte an object without a key may
	// stay.
	rest, left, err := takeOut(found, edited, edited)
	if found != nil && len(found) == 0 && string(bytes.TrimSpace(rest)) == "{}" {
		rest = nil
	}
	r.out = err == nil && len(left) == 0 && bytes.Equal(rest, found)
	r.files[target] = edited
	return r
}

// toolkitResult runs nvidia-ctk on a copy, with its own defaults: the names of the files, and
// --config-source=file, so that of CRI-O it reads crio.conf and no drop-in. (The other source,
// command, asks a CRI-O that runs.) It has no command that takes a runtime out.
// Source: cmd/nvidia-ctk/runtime of https://github.com/NVIDIA/nvidia-container-toolkit at v1.20.1,
// which has configure only.
func toolkitResult(t *testing.T, ctk parts.Part, kind string, in ctkInput, h engine.Handler) (r ctkResult) {
	t.Helper()
	root := t.TempDir()
	for name, data := range in.byPath() {
		must.OK(t, os.MkdirAll(filepath.Dir(root+name), 0o755))
		must.OK(t, os.WriteFile(root+name, data, 0o644))
	}

	flags := []string{
		"--runtime=" + kind, "--nvidia-runtime-path=" + h.Binary,
		fmt.Sprint("--set-as-default=", h.Default), fmt.Sprint("--cdi.enabled=", h.CDI),
	}
	switch {
	case kind == "docker":
		flags = append(flags, "--config="+root+ctkDaemonJSON)
	case in.ownFile:
		flags = append(flags, "--config="+root+"/etc/crio/crio.conf", "--drop-in-config=")
	default:
		flags = append(flags, "--config="+root+"/etc/crio/crio.conf", "--drop-in-config="+root+crioFolder+"/99-nvidia.toml")
	}

	if run := ctk.Configure(t, root, flags...); run.Exit != 0 {
		r.refused = run.Stderr
	}
	r.files = map[string][]byte{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		r.files[strings.TrimPrefix(p, root)], err = os.ReadFile(p)
		return err
	})
	must.OK(t, err)
	return r
}

func (in ctkInput) byPath() map[string][]byte {
	all := map[string][]byte{}
	for _, f := range in.files {
		if f.Data != nil {
			all[f.Path] = f.Data
		}
	}

	return all
}

// judge compares the files with those before.
func (r *ctkResult) judge(kind string, in ctkInput, h engine.Handler) {
	before := in.byPath()
	for name, data := range r.files {
		for line := range strings.Lines(diff.Texts(name, before[name], data)) {
			switch {
			case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
			case line[0] == '+':
				r.added++
			case line[0] == '-':
				r.removed++
			}
		}
	}

	for _, f := range in.files {
		r.lost = append(r.lost, ctkLost(kind, string(f.Data), string(r.files[f.Path]))...)
	}
	if r.refused != "" && !cmp.Equal(before, r.files) {
		r.wrong = append(r.wrong, "files changed")
	} else if r.refused == "" && kind == "crio" {
		r.wrong = crioWrong(in, r.files, h)
	} else if r.refused == "" {
		r.wrong = dockerWrong(before[ctkDaemonJSON], r.files[ctkDaemonJSON], h)
	}
}

// worse says where a result is worse than another.
func (r ctkResult) worse(other ctkResult) (bad []string) {
	say := func(is bool, format string, args ...any) {
		if is {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}

	say(len(r.wrong) > 0, "is wrong: %v", r.wrong)
	if r.refused != "" {
		say(other.refused == "" && len(other.wrong) == 0, "refuses what nvidia-ctk does: %s", r.refused)
		return bad
	}
	say(!r.out, "does not take its edit out byte for byte")
	for _, what := range r.lost {
		say(other.refused != "" || !slices.Contains(other.lost, what), "loses %s", what)
	}
	say(other.refused == "" && r.removed > other.removed, "removes %d lines, nvidia-ctk %d", r.removed, other.removed)
	say(other.refused == "" && len(other.wrong) == 0 && r.added > other.added, "adds %d lines, nvidia-ctk %d", r.added, other.added)
	return bad
}

// String is the cell of the table.
func (r ctkResult) String() string {
	list := func(good, bad string, all []string) string {
		if len(all) == 0 {
			return good
		}
		return bad + strings.Join(all, ", ")
	}

	if r.refused != "" {
		return list("refused", "refused, but ", r.wrong)
	}
	out := "out again"
	if !r.out {
		out = "no way out"
	}
	survives, effect := list("all survives", "loses ", r.lost), list("exact", "wrong: ", r.wrong)
	return fmt.Sprintf("+%d -%d; %s; %s; %s", r.added, r.removed, survives, effect, out)
}

// crioTree are the files as CRI-O reads them: the file, then the drop-ins by name.
func crioTree(files map[string][]byte) (all []facts.File) {
	for name, data := range files {
		all = append(all, facts.File{Path: name, Data: data})
	}
	slices.SortFunc(all, func(a, b facts.File) int { return strings.Compare(a.Path, b.Path) })
	return all // /etc/crio/crio.conf is less than /etc/crio/crio.conf.d/…
}
