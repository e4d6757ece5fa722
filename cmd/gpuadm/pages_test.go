// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pages"
)

//go:embed testdata/programs.txt
var programs string

// knows is what programs of other projects know, from testdata/programs.txt: their options by
// program and words.
var knows = func() map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(programs) {
		if words, options, is := strings.Cut(line, ": "); is && line[0] != '#' {
			all[words] = strings.Fields(options)
		} else if words, is := strings.CutSuffix(line, ":\n"); is && line[0] != '#' {
			all[words] = nil
		}
	}

	return all
}()

// isKnown says whether the program, or the program with its first words, has commands or options.
func isKnown(words string) bool {
	_, is := knows[words]
	for known := range knows {
		is = is || strings.HasPrefix(known, words+" ") && known != words+" *"
	}
	return is
}

// foreignOne judges the words of a command of another program: its first words and its options are
// ones that the program knows.
func foreignOne(words []string) string {
	at := words[0]
	_, any := knows[at] // words
	option := func(name string) string {
		for _, known := range append(slices.Clone(knows[at]), knows[words[0]+" *"]...) {
			if strings.TrimSuffix(known, "=") == name {
				return known
			}
		}
		return ""
	}

	for i := 1; i < len(words) && words[i] != "--"; i++ {
		name, _, value := strings.Cut(words[i], "=")
		switch known := option(name); {
		case !isOption.MatchString(name) && isKnown(at+" "+words[i]):
			at += " " + words[i]
			_, any = knows[at]
		case !isOption.MatchString(name) && !any:
			return at + " knows no " + words[i]
		case !isOption.MatchString(name):
		case known == "" && name[1] != '-' && len(name) > 2: // several letters
			for _, letter := range name[1:] {
				if option("-"+string(letter)) == "" {
					return at + " knows no -" + string(letter) + " in " + name
				}
			}

			if strings.HasSuffix(option(name[len(name)-1:]), "=") {
				i++
			}
		case known == "":
			return at + " knows no " + name
		case strings.HasSuffix(known, "=") && !value:
			i++
		}
	}

	if !any {
		return at + " is not a command"
	}
	return ""
}

var isOption = regexp.MustCompile(`^--?[a-zA-Z][a-zA-Z-]*$`)

// typed finds the verb of a command line of gpuadm, whose flags and arguments it takes.
func typed(e env, words []string) (*cobra.Command, error) {
	cmd, rest, err := newRoot(e).Find(words)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if args := cmd.Flags().Args(); err == nil && cmd.HasSubCommands() && len(args) > 0 {
		err = fmt.Errorf("%s has no command %s", cmd.CommandPath(), args[0])
	}
	return cmd, err
}

// wrongOnPage says what is wrong with a command of a page; "" if nothing is.
func wrongOnPage(words []string) string {
	if words[0] == "sudo" {
		words = words[1:]
	}
	for _, word := range words { // the pages are read at the top of the source
		if at := word[strings.LastIndexByte(word, '=')+1:]; strings.HasPrefix(at, "docs/") || strings.HasPrefix(at, "images/") {
			if _, err := os.Stat("../../" + at); err != nil {
				return err.Error()
			}
		}
	}

	var rest []string // what another program runs
	if i := slices.Index(words, "--"); i > 0 {
		rest = words[i+1:]
	}
	switch name := path.Base(words[0]); {
	case name == "gpuadm" || words[0] == "/var/lib/gpuadm/daemonset":
		if len(rest) > 0 {
			if why := wrongOnPage(append([]string{"gpuadm"}, rest...)); why != "" {
				return why
			}
		}

		if _, err := typed(env{getenv: func(string) string { return "" }}, words[1:]); err != nil {
			return err.Error()
		}
		return ""
	case name == "chroot":
		return wrongOnPage(words[2:])
	case len(rest) > 0:
		if why := wrongOnPage(rest); why != "" {
			return why
		}
	case name == "make":
		text, err := os.ReadFile("../../Makefile")
		if err != nil || !strings.Contains(string(text), "\n"+words[1]+":") {
			return fmt.Sprintf("Makefile has no %s (%v)", words[1], err)
		}
		return ""
	case name == "helm":
		if why := wrongValue(words); why != "" {
			return why
		}
	}

	if isKnown(words[0]) {
		return foreignOne(words)
	}
	return "testdata/programs.txt does not have " + words[0]
}

// wrongValue looks for the values that a command sets in the chart that it names: ours, or one of
// programs.txt.
func wrongValue(words []string) string {
	var chart []string
	for _, word := range words {
		chart = append(chart, knows["chart "+word]...)
		if word == "images/chart" {
			text, err := os.ReadFile("../../images/chart/values.yaml")
			values := map[string]any{}
			if err = cmp.Or(err, yaml.Unmarshal(text, values)); err != nil {
				return err.Error()
			}
			chart = slices.Collect(maps.Keys(values))
		}
	}

	if chart == nil && (words[1] == "install" || words[1] == "upgrade") {
		return "testdata/programs.txt does not have the chart"
	}
	for i, word := range words[1:] {
		if set, _, is := strings.Cut(word, "="); is && slices.Contains([]string{"--set", "--set-file", "--set-string"}, words[i]) {
			if name, _, _ := strings.Cut(set, "["); !slices.Contains(chart, name) {
				return "the chart has no value " + name
			}
		}
	}

	return ""
}

// ourPages are the pages for people, whose command lines TestPages types.
func ourPages(t *testing.T) (names []string) {
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/decisions/*.md", "../../images/*/README.md", "../../test/*/README.md"} {
		names = append(names, must.Get(filepath.Glob(pattern))(t)...)
	}
	return names
}

// TestPages: each command line of our pages is valid for its program, also gpuadm in code within a
// line. What can be run is run elsewhere: the quick start by TestLabReadme, kubectl and helm by
// TestLabKubePages, the tutorial by TestTutorial, and README's plan by TestReadmePlan.
func TestPages(t *testing.T) {
	code, prompt, own := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile("(?m)^ *(sudo .+|\\$ .+|```(?:[a-z]*sh|shell|console))$"), regexp.MustCompile(`^(?:sudo )?gpuadm [a-z][^…]*$`)
	commands := 0
	for _, name := range ourPages(t) {
		text := string(must.Get(os.ReadFile(name))(t))
		lines := pages.Lines(strings.TrimPrefix(name, "../../"), text)
		for _, m := range prompt.FindAllStringSubmatch(text, -1) {
			is := slices.ContainsFunc(lines, func(l pages.Line) bool {
				return strings.Contains(l.Text, strings.TrimRight(m[1], ` \`))
			})
			check.That(t, is || name == "../../README.md", "%s: no test types %s", name, m[1]) // TestClaims has README's
		}

		for i, line := range strings.Split(text, "\n") {
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				if own.MatchString(m[1]) {
					lines = append(lines, pages.Line{
						At:   fmt.Sprintf("%s:%d", name, i+1),
						Text: m[1],
					})
				}
			}
		}

		for _, line := range lines {
			for _, words := range line.Commands() {
				commands++
				if why := wrongOnPage(words); why != "" {
					t.Errorf("%s: %s\n%s", line.At, why, line.Text)
				}
			}
		}
	}

	check.That(t, commands >= 200, "only %d commands were found", commands)
	for line := range strings.Lines(string(must.Get(os.ReadFile("testdata/wrong-lines.txt"))(t))) {
		why := ""
		for _, words := range (pages.Line{Text: strings.TrimSuffix(line, "\n")}).Commands() {
			why += wrongOnPage(words)
		}
		check.That(t, why != "", "nothing is wrong with %s", line)
	}
}
