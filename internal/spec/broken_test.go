// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "write what Parse says into testdata/broken")

// TestBroken holds what is said about broken files. An archive of testdata/broken has many cases, each a folder:
// CASE/node.toml, CASE/node.d/… and CASE/want.
func TestBroken(t *testing.T) {
	names, err := filepath.Glob("testdata/broken/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no cases", err)
	}
	for _, name := range names {
		archive := must.Get(txtar.ParseFile(name))(t)
		var files []spec.File
		changed := false
		for i, f := range archive.Files {
			test, file, _ := strings.Cut(f.Name, "/")
			if file != "want" {
				data := f.Data
				if strings.HasSuffix(test, "-no-newline") {
					data = []byte(strings.TrimSuffix(string(data), "\n"))
				}
				files = append(files, spec.File{Name: file, Data: data})
				continue
			}
			given := files
			files = nil
			t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar")+"/"+test, func(t *testing.T) {
				got := talk(t, given)
				if *update {
					changed = changed || got != string(f.Data)
					archive.Files[i].Data = []byte(got)
				} else if want := string(f.Data); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
		check.That(t, len(files) == 0, "%s: the last case has no want", name)
		if changed {
			must.OK(t, os.WriteFile(name, txtar.Format(archive), 0o644))
		}
	}
}

// talk is what is said about files: each error, the line with a mark below, the fix.
func talk(t *testing.T, files []spec.File) string {
	t.Helper()
	s, err := spec.Parse(files...)
	if err == nil {
		t.Errorf("it is taken:\n%s", s.TOML())
		return ""
	}
	var all trouble.Faults
	must.That(t, errors.As(err, &all), "%T is not Faults", err)
	var b strings.Builder
	for _, e := range all {
		check.That(t, strings.Join(e.Try, "") != "", "no fix for %v", e)
		mark := strings.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, string([]rune(e.At.Text)[:min(e.At.Column-1, len([]rune(e.At.Text)))]))
		fmt.Fprintf(&b, "%v\n    | %s\n    | %s^\n    = %s\n", e, e.At.Text, mark, e.Try[0])
	}
	return b.String()
}
