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

// TestBroken holds what is said about broken files. An archive of testdata/broken has many cases,
// each a folder: CASE/node.toml, CASE/node.d/… and CASE/want.
func TestBroken(t *testing.T) {
	names, err := filepath.Glob("testdata/broken/*.txtar")
	must.That(t, err == nil && len(names) > 0, "%v: %v", "no cases", err)
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

func TestBytes(t *testing.T) {
	many := make([]spec.File, 101)
	for i := range many {
		many[i] = part(i, "format = 1\n")
	}
	for _, test := range []struct {
		name  string
		files []spec.File
		want  string // "" = it is taken
	}{
		{"nothing", nil, "node.toml:1:1: no file is given"},
		{"mark and CRLF", []spec.File{node("\ufeffformat = 1\r\n[driver]\r\n")}, ""},
		{
			"column after a mark",
			[]spec.File{node("\ufeffforma = 1")},
			"node.toml:1:1: unknown key \"forma\" at the top of the file",
		},
		{"NUL", []spec.File{node("format = 1\n# ä\x00")}, "node.toml:2:4: there is a NUL byte"},
		{"Latin-1", []spec.File{node("format = 1\n# \xe4")}, "node.toml:2:3: the byte 0xe4 is not UTF-8"},
		{"UTF-16", []spec.File{node("\xff\xfef\x00")}, "node.toml:1:1: the file is UTF-16, not UTF-8"},
		{"just not too large", []spec.File{node("format = 1\n#" + strings.Repeat("x", 1<<20-12))}, ""},
		{
			"too large",
			[]spec.File{node("format = 1\n#" + strings.Repeat("x", 1<<20-11))},
			"node.toml:1:1: the file has 1048577 bytes; at most 1048576 are read",
		},
		{"100 files", many[:100], ""},
		{"101 files", many, "node.d/100.toml:1:1: more than 100 files"},
		{
			"deep",
			[]spec.File{node("format = " + strings.Repeat("[", 20000))},
			"node.toml:1:10010: invalid TOML: arrays and inline tables are nested more than the maximum of 10000 levels deep",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := spec.Parse(test.files...)
			got := fmt.Sprint(err)
			check.That(t, got == test.want || (err == nil && test.want == ""), "got %s", got)
		})
	}
}

// A file of nonsense must not cost minutes, nor a terminal full of words.
func TestHostile(t *testing.T) {
	for name, text := range map[string]string{
		"keys":    strings.Repeat("x=1\n", 1<<18),
		"inline":  "driver = {" + strings.Repeat("a.b=1,", 170000) + "}",
		"tables":  strings.Repeat("[[a]]\n", 170000),
		"dots":    strings.Repeat("a.", 1<<19-1) + "a = 1",
		"header":  "[" + strings.Repeat("a.", 1<<19-20) + "a]",
		"list":    "node.taints = [" + strings.Repeat("1,", 1<<19-20) + "]",
		"letters": strings.Repeat("token_", 170000) + "= 1",
		"at":      "# " + strings.Repeat("://", 340000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.Parse(node(text))
			var all trouble.Faults
			check.That(t, errors.As(err, &all) && len(all) <= 201 && len(fmt.Sprint(err)) <= 1<<16, "%d errors of %d bytes", len(all), len(fmt.Sprint(err)))
			for _, e := range all {
				must.That(t, len(e.At.Text) <= 1000, "a line of %d bytes", len(e.At.Text))
			}
		})
	}
}

// Whatever is wrong around it: a secret is in no error.
func TestSecrets(t *testing.T) {
	const hidden = "Hunter2Hunter2"
	values := []string{
		`"%s"`, `'%s'`, `"""%s"""`, "\"\"\"\n%s\n\"\"\"", "'''\n\n%s'''", `["%s"]`, "[\n\"x\",\n\"%s\"\n]", `{ a = "%s" }`, `{ "%s" = 1 }`,
		`%s`, `"%s`, `'%s`, `"""%s`, "'''\n%s", `"\q%s"`, `"%s\q"`, "\"\"\"\n%s\\q\"\"\"", `["%s"`, "[\n\"%s\"\nx]", `{ a = "%s"`, `"%s" "x"`, `"x" "%s"`, `"x%s`, `= %s`, `"%s" # x`, "\"%s\x00\"", "\"%s\xff\"", `"a" # %s`,
	}
	keys := []string{"token", "Token", "join_token", "bootstrap-token", "password", "PASSWD", "passphrase", "client_secret", "secrets", "credentials", "api_key", "private-key", "token_file", `"token"`, "token.x", "x.token", `secret."a b"`}
	frames := []string{
		"format = 1\n%s\n", "format = 2\n%s\n", "%s", "format = 1\n[driver]\nversion = \"580\"\n%s\nversoin = 1\n", "format = 1\n[join]\nmethod = \"eks\"\n%s\n",
		"format = 1\n[[mig.gpu]]\n%s\n", "format = 1\n[node.labels]\n%s\n", "format = 1\n[driver.parameters]\n%s\n", "format = 1\n[[mig.gpu]]\nlayout = {}\n[mig.gpu.layout]\n%s",
		"format = 1\njoin = { sever = \"x\", %s, hwo = 1 }\n", "format = 1\nnode.taints = [ { %s }, 1 ]\n", "format = 1\n[node]\ntaints = [\n{ %s },\n1\n]\n", "format = 1\n[unknown]\n%s\n", "format = 1\n[driver]\n[driver]\n%[1]s\n%[1]s\n", "format = 1\n[token]\n%s\n",
	}
	count := 0
	check := func(text string) {
		count++
		_, err := spec.Parse(node(text))
		var all trouble.Faults
		errors.As(err, &all)
		for _, e := range all {
			said := strings.Join([]string{e.At.File, e.At.Text, e.What, e.Try[0], e.Error()}, "\n")
			must.That(t, !strings.Contains(strings.ToLower(said), strings.ToLower(hidden[:7])), "%s\nsays\n%s", text, said)
		}
	}

	for _, frame := range frames {
		for _, key := range keys {
			for _, value := range values {
				check(fmt.Sprintf(frame, key+" = "+fmt.Sprintf(value, hidden)))
			}
			check(fmt.Sprintf(frame, key+": "+hidden))
			check(fmt.Sprintf(frame, key+" "+hidden))
			check(fmt.Sprintf(frame, key+"."+hidden+" = 1"))
			check(fmt.Sprintf(frame, "x = 1 # "+key+" = "+hidden))
			check(fmt.Sprintf(frame, "["+key+"."+hidden+"]\nx = 1"))
			check(fmt.Sprintf(frame, "[x."+key+"]\nx = \""+hidden))
		}
	}
	// A password in a URL, and secrets that are known by their shape, under every key.
	for _, k := range spec.Keys() {
		for _, value := range []string{"http://me:" + hidden + "@h", "https://" + hidden + "@h/x", "ftp://a:" + hidden + " x@h", "x-y://a:" + hidden + "@h", "x://a/" + hidden + ":NoSchedule@h", "~x://a/" + hidden + "@h", "-----BEGIN RSA PRIVATE KEY-----" + hidden} {
			for _, form := range []string{"[%s]\n%s = \"%s\"", "[[%s]]\n%s = [\"%s\"]", "[%s]\n%s = %s", "[%s]\n%s = { a = \"%s\" }", "[%s]\n%s = \"%s"} {
				if !strings.HasPrefix(value, hidden[:6]) {
					check("format = 1\n" + fmt.Sprintf(form, k.Section, k.Name, value))
				}
			}
		}
	}

	t.Log(count, "texts")
}
