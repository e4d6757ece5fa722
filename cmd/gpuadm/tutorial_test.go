// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pages"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// pageColumns is the width of the terminal whose output pages show.
const pageColumns = 100

// live is a live line of a terminal, which the next line has replaced.
var live = regexp.MustCompile(`[^\n]*\n\x1b\[2K`)

// followed types a page's commands of gpuadm on a machine, from a text of the page on, and holds the
// page against the output; -update writes it. Commands of other programs are not typed.
func followed(t *testing.T, name, from string, n *simhost.Node) {
	t.Helper()
	whole := string(must.Get(os.ReadFile(name))(t))
	before, text, found := strings.Cut(whole, from)
	must.That(t, found, "%s has no %q", name, from)
	page := before + from + pages.Follow(strings.TrimPrefix(name, "../../"), text, pages.Reader{
		Type: func(line pages.Line) string { return typedOnPage(t, n, line) },
		Edit: func(verb, file, lines string) {
			now := string(must.Get(n.ReadFile(file))(t))
			if verb == "add to" {
				pairs.Write(t, n, file, now+lines)
				return
			}
			for line := range strings.Lines(lines) {
				check.That(t, strings.Contains(now, "\n"+line), "%s: %s has no line %s", name, file, line)
			}
		},
	})
	if *update {
		must.OK(t, os.WriteFile(name, []byte(page), 0o644))
		return
	}
	check.None(t, diff.Texts(name, []byte(whole), []byte(page)), "%s does not show what its commands print; go test ./cmd/gpuadm -update writes it:", name)
}

// typedOnPage types a command line, and returns what a terminal shows then. Each command ends well.
func typedOnPage(t *testing.T, n *simhost.Node, line pages.Line) string {
	t.Helper()
	words := line.Commands()[0]
	if words[0] == "cat" {
		return string(must.Get(n.ReadFile(words[1]))(t))
	}
	isOurs := words[0] == "sudo" && strings.HasSuffix(words[1], "gpuadm")
	if !isOurs {
		return ""
	}

	words = words[2:]
	if words[len(words)-1] == "undo" { // the page's operator answers yes
		words = append(words, "--yes")
	}
	screen, shown := atTerminal(t, pageColumns)
	e := envOn(n, screen)
	e.getenv = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
	code := run(t.Context(), e, words)
	out := live.ReplaceAllString(shown(), "")
	must.That(t, code == 0, "%s: %s: exit code %d\n%s", line.At, line.Text, code, out)
	return out
}

// TestTutorial follows docs/tutorial.md on the machine of `make demo`, which has repositories that a
// file of node.d names: each command ends well, the page shows what it prints, and the undo ends in
// the machine from before the first apply.
func TestTutorial(t *testing.T) {
	n := must.Get(simhost.New(demoNode))(t)
	ubuntu.Install(n)
	n.Install("journalctl", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(*files.Files, []string) ([]byte, error) {
			return []byte("Linux version 6.8.0-88-generic\n"), nil
		},
	})
	must.OK(t, n.Remove(specHome+"/node.toml"))
	pairs.Write(t, n, specHome+"/node.d/mirror.toml", string(must.Get(os.ReadFile("testdata/mirror.toml"))(t)))
	first := pairs.Tree(n)

	followed(t, "../../docs/tutorial.md", "## 1.", n)
	check.Equal(t, pairs.Tree(n), first, "after the tutorial's undo the machine is")
}

// TestReadmePlan follows the plan of README on a recorded machine.
func TestReadmePlan(t *testing.T) {
	n := must.Get(simhost.New(recorded(t)["ubuntu24-h100"]))(t)
	_, spec, _ := strings.Cut(string(must.Get(os.ReadFile("../../test/script/readme.txtar"))(t)), "-- node.toml --\n")
	must.OK(t, n.Mkdir(specHome, host.Attr{Mode: 0o755}))
	pairs.Write(t, n, specHome+"/node.toml", spec)

	followed(t, "../../README.md", "A plan, on a machine with", n)
}

// TestShownOutput: no page shows output that no test compares.
func TestShownOutput(t *testing.T) {
	shows := regexp.MustCompile("(?m)^ *```(text|console)$")
	var found []string
	for _, name := range ourPages(t) {
		if shows.Match(must.Get(os.ReadFile(name))(t)) {
			found = append(found, strings.TrimPrefix(name, "../../"))
		}
	}

	check.Equal(t, strings.Join(found, " "), "README.md docs/tutorial.md", "pages with output:")
}
