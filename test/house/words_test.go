// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// vague are words that hide who acts, or that mean two things here. STYLE.md has the words to use
// in their place. Each is a pattern over lower-case words with one space between them.
var vague = []string{
	`stands?`, `stood`, `standing`, `anew`, `mend(s|ed|ing)?`, `nobody`, `somebody`, `anybody`, `who(m|se)?(so)?ever`,
	`puts? (\w+ ){0,2}back`, `(is|are|was|were|be|been|being) to be had`, `to be had`, `let(s|ting)? go`,
	`(is|are|was|were|be|been) told`, `goes on at`, `makes? (it|them|all) so`, `as they are`,
	`stale fresh`, `of ours`, `it is said`,
}

// allowed are lines that keep such a word: a part of the file's name, a part of the line, and the
// reason.
var allowed = [][3]string{
	{"test/house/words_test.go", "", "lists the words"},
	{"STYLE.md", "| ", "the glossary names the words that it replaces"},
	{"cmd/gpuadm/script_test.go", `"nobody"`, "the name of a Unix user"},
	{"test/script/", "env USER=nobody", "the name of a Unix user"},
}

// TestWords finds vague words in what people read: comments, strings, identifiers, documents,
// units, scripts and file names.
func TestWords(t *testing.T) {
	for _, name := range ourTexts(t) {
		data, err := os.ReadFile(path.Join("../..", name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		must.OK(t, err)
		for _, hit := range vagueWords(name, data) {
			t.Errorf("%s; STYLE.md has the words to use", hit)
		}
	}
}

// TestWordsAreFound plants vague words in each kind of text, and what only resembles them.
func TestWordsAreFound(t *testing.T) {
	const head = "package a\n"
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"a.go", head + "// It stands.\n", 1},
		{"a.go", head + "var whoseAnew = 1\n", 1},
		{"a.go", head + "const a = \"it is to be\" +\n\t\" had anew\"\n", 2},
		{"a.go", head + "// what is put\n// back\n", 1},
		{"a.go", head + "// a stand-in, a standard, a standalone, understand, standIn, amendment\n", 0},
		{"a.md", "Nobody\nlets it go.\n", 1},
		{"a.md", "what cannot be\nlet go\n", 1},
		{"a.yaml", "# whoever mends it\n", 2},
		{"a.service", "Description=stale → fresh\n", 1},
		{"mend_test.go", head, 1},
		{"Makefile", "help: ## write the goldens anew\n", 1},
	} {
		hits := vagueWords(c.name, []byte(c.text))
		check.That(t, len(hits) == c.want, "%s %q: found %q, want %d", c.name, c.text, hits, c.want)
	}
}

// ourTexts lists the files that people read. What other programs have said is recorded in testdata
// folders: goldens of ours alone are read there.
func ourTexts(t *testing.T) (names []string) {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	must.That(t, err == nil, "cannot list the repository's files: %v", err)
	ends := []string{".go", ".md", ".yaml", ".toml", ".sh", ".service", ".conf", ".golden", ".txtar", "Makefile", ".ci/run"}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		goldens := strings.HasPrefix(name, "cmd/gpuadm/testdata/") || strings.HasSuffix(name, ".golden") || strings.HasSuffix(name, ".txtar")
		if strings.Contains(name, "testdata/") && !goldens || strings.HasPrefix(name, "test/listings/") || strings.HasPrefix(name, "test/hosts/") {
			continue
		}
		if goldens || slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) }) {
			names = append(names, name)
		}
	}
	must.That(t, len(names) >= 200, "%d files only", len(names))
	return names
}

var (
	vaguePattern = regexp.MustCompile(`(?:^| )(` + strings.Join(vague, "|") + `)(?: |$)`)
	camel        = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	notLetters   = regexp.MustCompile(`[^\pL']+`)
	standIn      = regexp.MustCompile(`(?i)stand-?ins?\b`)
)

// vagueWords returns where a text has a vague word, file:line first.
func vagueWords(name string, data []byte) (hits []string) {
	lines := strings.Split(string(data), "\n")
	for _, p := range append(pieces(name, data), piece{1, path.Base(name)}) {
		words, starts := "", []int{} // where each line starts in words
		for line := range strings.SplitSeq(p.text, "\n") {
			starts = append(starts, len(words))
			line = camel.ReplaceAllString(standIn.ReplaceAllString(line, " "), "$1 $2")
			words = strings.TrimRight(words+strings.ToLower(notLetters.ReplaceAllString(" "+line+" ", " ")), " ")
		}
		for from := 0; from < len(words); {
			at := vaguePattern.FindStringSubmatchIndex(words[from:])
			if at == nil {
				break
			}
			line := p.line
			for _, start := range starts[1:] {
				if start <= from+at[0] {
					line++
				}
			}
			if !isAllowed(name, lines[min(line, len(lines))-1]) {
				hits = append(hits, fmt.Sprintf("%s:%d: %q", name, line, words[from+at[2]:from+at[3]]))
			}
			from += at[3]
		}
	}
	return hits
}

func isAllowed(name, line string) bool {
	return slices.ContainsFunc(allowed, func(a [3]string) bool { return strings.Contains(name, a[0]) && strings.Contains(line, a[1]) })
}

// A piece is text that is read in one go: a comment, a message of several literals, a paragraph.
type piece struct {
	line int
	text string
}

// pieces of Go are its comments, its strings and its identifiers; of other files the paragraphs.
func pieces(name string, data []byte) (all []piece) {
	if !strings.HasSuffix(name, ".go") {
		line := 1
		for par := range strings.SplitSeq(string(data), "\n\n") {
			all = append(all, piece{line, strings.NewReplacer("\n#", "\n", "\n//", "\n").Replace(par)})
			line += strings.Count(par, "\n") + 2
		}
		return all
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile(name, -1, len(data))
	s.Init(file, data, nil, scanner.ScanComments)
	last := token.ILLEGAL
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return all
		}
		line := file.Line(pos)
		switch tok {
		case token.COMMENT, token.STRING:
			if tok == token.STRING {
				text = string(bytes.Trim([]byte(text), "\"`"))
			}
			if n := len(all) - 1; n >= 0 && tok == last && line == all[n].line+strings.Count(all[n].text, "\n")+1 {
				all[n].text += "\n" + text
				continue
			}
			last = tok
		case token.ADD, token.SEMICOLON:
			continue // between two parts of a message, or behind a comment
		case token.IDENT:
			last = tok
		default:
			last = tok
			continue
		}
		all = append(all, piece{line, text})
	}
}
