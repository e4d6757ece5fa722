// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
)

// FuzzParse: any bytes get an answer; an error has a place and a fix; what go-toml refuses is
// refused here; an accepted spec is accepted again in its canonical form, with the same result.
func FuzzParse(f *testing.F) {
	names, _ := filepath.Glob("testdata/broken/*.txtar")
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if !strings.HasSuffix(file.Name, "/want") {
				f.Add(file.Data, []byte{})
			}
		}
	}

	f.Add([]byte(example), []byte(whole))
	f.Add([]byte(strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1)), []byte("node.taints = [\"example.com/a-\"]"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		files := []spec.File{
			{Name: "node.toml", Data: first},
			{Name: "node.d/10.toml", Data: second},
		}
		var s spec.Spec
		var err error
		alloc.Most(t, 2000, len(first)+len(second), func() { s, err = spec.Parse(files...) })
		if err == nil {
			wantAccepted(t, s, files)
			return
		}

		var all trouble.Faults
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("%T is not Faults", err)
		}
		if !reflect.DeepEqual(s, spec.Spec{}) {
			t.Fatal("an error, and a spec")
		}
		for i, fault := range all {
			wantShowable(t, fault, files)
			if i > 0 && isBefore(fault.At, all[i-1].At) {
				t.Fatalf("not in order: %v", all)
			}
		}
	})
}

// withoutMark returns a file's text without a byte order mark.
func withoutMark(f spec.File) string { return strings.TrimPrefix(string(f.Data), "\ufeff") }

// wantAccepted wants go-toml to take files that gives this spec, and the spec's canonical form to give
// the same spec again.
func wantAccepted(t *testing.T, s spec.Spec, files []spec.File) {
	t.Helper()
	for _, file := range files {
		err := toml.Unmarshal([]byte(withoutMark(file)), &map[string]any{})
		if err != nil {
			t.Fatalf("go-toml does not take %s: %v", file.Name, err)
		}
	}

	again, err := spec.Parse(spec.File{Name: "canonical", Data: s.TOML()})
	if err != nil {
		t.Fatalf("it is taken, but not its canonical form:\n%s\n%v", s.TOML(), err)
	}
	if again.Digest() != s.Digest() || !reflect.DeepEqual(again, s) {
		t.Fatalf("read again\n%s\nit is\n%s", s.TOML(), again.TOML())
	}
}

// wantShowable wants a fault to name a place that one of the files has, and what to do, in text that a
// terminal can show.
func wantShowable(t *testing.T, fault *trouble.Error, files []spec.File) {
	t.Helper()
	at := fault.At
	if at.File == "" || at.Line < 1 || at.Column < 1 || fault.What == "" || strings.Join(fault.Try, "") == "" {
		t.Fatalf("%#v", fault)
	}

	var text string
	for _, file := range files {
		if file.Name == at.File {
			text = withoutMark(file)
		}
	}
	lines := strings.Split(text, "\n")
	if at.Line > len(lines) || at.Column > utf8.RuneCountInString(lines[at.Line-1])+1 {
		t.Fatalf("there is no such place: %#v", fault)
	}

	shown := at.Text + fault.What + fault.Try[0]
	if !utf8.ValidString(shown) || strings.ContainsAny(shown, "\x1b\n\r\x00") {
		t.Fatalf("this cannot be shown: %#v", fault)
	}
}

// isBefore reports whether a place is before another one of the same file.
func isBefore(a, b trouble.Position) bool {
	if a.File != b.File {
		return false
	}
	return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
}

// TestRendered: any spec that can be said in Go can be said in TOML, and is read back as the same.
func TestRendered(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		s := dice{r}.spec()
		text := s.TOML()
		got, err := spec.Parse(spec.File{Name: "node.toml", Data: text})
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		if !reflect.DeepEqual(got, s) || got.Digest() != s.Digest() {
			t.Fatalf("read\n%s\nit is\n%s", text, got.TOML())
		}
		if err := toml.Unmarshal(text, &map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
}
