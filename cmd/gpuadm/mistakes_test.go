// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pages"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// nextStep is how an answer says what to do; a file that is not there needs no such line.
var nextStep = regexp.MustCompile(`\n +try|; (see )?gpuadm |takes |no such file|needs --os|no run is left|gpuadm ssh root@`)

// TestMistakes: what a person gets wrong on the command line and in node.toml is answered with the
// thing that is wrong and the next step. The file has each mistake as it is typed, with the file
// that < gives to stdin, and its answer.
func TestMistakes(t *testing.T) {
	const file = "testdata/mistakes.txt"
	var all strings.Builder
	seen := 0
	golden := string(must.Get(os.ReadFile(file))(t))
	for line := range strings.Lines(golden) {
		line = strings.TrimSpace(line)
		typed, is := strings.CutPrefix(line, "$ gpuadm ")
		if !is {
			continue
		}
		typed, quoted, piped := strings.Cut(typed, " < ")
		text := ""
		if piped {
			text = must.Get(strconv.Unquote(quoted))(t)
		}
		n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
		code, out := onHostWith(t, n, text, strings.Fields(typed)...)
		check.That(t, code != 0, "%s: exit code 0", line)
		check.That(t, nextStep.MatchString(out), "%s does not say what to do:\n%s", line, out)
		for _, hint := range hintsIn(out) {
			follows(t, n.Clone(), line, hint)
		}
		all.WriteString(line + "\n" + strings.TrimSpace(out) + "\n\n")
		seen++
	}

	must.That(t, seen >= 50, "%d mistakes", seen)
	if *update {
		must.OK(t, os.WriteFile(file, []byte(all.String()), 0o644))
		return
	}
	check.None(t, diff.Texts(file, []byte(golden), []byte(all.String())), "%s:", file)
}

// hintsIn are the command lines of gpuadm below try in an answer, without the words that say what
// they do.
func hintsIn(out string) (lines []string) {
	isTry := false
	for line := range strings.Lines(out) {
		text, begins := strings.CutPrefix(line, "  try  ")
		isTry = begins || isTry && strings.HasPrefix(line, "           ")
		line, _, _ = strings.Cut(strings.TrimSpace(text), "   ")
		line = strings.TrimPrefix(line, "sudo ")
		words := strings.ReplaceAll(line, "H100-80GB", "x")
		hasBlank := regexp.MustCompile(`\b[A-Z]{2,}\b|…`).MatchString(words)
		if isTry && strings.HasPrefix(line, "gpuadm ") && !hasBlank {
			lines = append(lines, line)
		}
	}

	return lines
}

// follows types what an answer says to type, on a machine with a spec: it is not a mistake again.
func follows(t *testing.T, n *simhost.Node, mistake, hint string) {
	t.Helper()
	const spec = "format = 1\n[runtime]\n"
	if _, err := n.ReadFile(specHome + "/node.toml"); err != nil {
		pairs.Write(t, n, specHome+"/node.toml", spec)
	}
	words := (pages.Line{Text: hint}).Commands()[0][1:]
	if slices.Contains(words, "--help") {
		code, _ := onHost(t, n, words...)
		check.That(t, code == 0, "%s names %q: exit code %d", mistake, hint, code)
		return
	}

	for i, word := range words {
		if word == "n.toml" {
			words[i] = "-"
		}
	}

	cmd, err := typed(envOn(n, io.Discard), words)
	must.That(t, err == nil, "%s names %q: %v", mistake, hint, err)
	if slices.Contains(notTyped, cmd.Name()) {
		return
	}

	code, out := onHostWith(t, n, spec, words...)
	check.That(t, code != exitUsage, "%s names %q, which is a mistake again:\n%s", mistake, hint, out)
}

// TestAllIsTyped: no verb, no flag and no page is there that no test touches: the program's own
// tables and the files of docs against the tests' texts. TestPages types the pages and so the files
// that they name.
func TestAllIsTyped(t *testing.T) {
	var all strings.Builder
	for _, pattern := range []string{"*_test.go", "testdata/mistakes.txt", "testdata/screens.txt", "../../test/script/*.txtar", "../../test/*/*.go", "../../internal/*/*_test.go", "../../test/lab/*/*.go", "../../images/*/*.service", "../../images/chart/templates/*"} {
		for _, name := range must.Get(filepath.Glob(pattern))(t) {
			all.Write(must.Get(os.ReadFile(name))(t))
		}
	}

	typed := strings.NewReplacer(`", "`, " ", `"`, " ").Replace(all.String())
	seen := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "completion" { // cobra's own
			return
		}
		path := strings.TrimPrefix(cmd.CommandPath(), "gpuadm ")
		check.That(t, cmd.Hidden && !cmd.HasAvailableFlags() || regexp.MustCompile(`\b`+path+`\b`).MatchString(typed), "no test types gpuadm %s", path)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			seen++
			long, short := `--`+f.Name+`\b`, ""
			if f.Shorthand != "" {
				short = `| -` + f.Shorthand + `\b`
			}
			check.That(t, regexp.MustCompile(long+short).MatchString(typed), "no test types --%s of gpuadm %s", f.Name, path)
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}

	visit(newRoot(env{getenv: func(string) string { return "" }}))
	must.That(t, seen >= 50, "%d flags", seen)
	pages := ourPages(t)
	for _, name := range pages {
		all.Write(must.Get(os.ReadFile(name))(t))
	}
	must.OK(t, filepath.WalkDir("../../docs", func(name string, d fs.DirEntry, err error) error {
		base := filepath.Base(name)
		named := slices.Contains(pages, name) || strings.Contains(all.String(), base) || strings.Contains(all.String(), `"`+strings.TrimSuffix(base, ".json")+`"`)
		check.That(t, err != nil || d.IsDir() || named, "no test touches %s", name)
		return err
	}))
}

// TestBeforeTheJoin: what waits for the Node is one phrase, however many labels there are.
func TestBeforeTheJoin(t *testing.T) {
	var all []converge.Line
	for i, name := range []string{"label a/b", "label a/c", "record nvidia.com/gpuadm.labels", "taint a/d:NoSchedule", "taint a/e:NoSchedule"} {
		label := converge.Change{Ref: converge.Ref{Kind: "node", Name: name}}
		all = append(all, converge.Line{
			Change: label,
			Reason: converge.Reason{Deferred: "once the node has joined"},
		})
		if i == 0 {
			check.Equal(t, deferred(all), "node"+glue+"label a/b is deferred until the node has joined", "one:")
		}
	}

	check.Equal(t, deferred(all), "5 labels, records and taints of this node are deferred until the node has joined", "all:")
}
