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
	command := words[0]
	_, takesWords := knows[command]
	option := func(name string) string {
		all := append(slices.Clone(knows[command]), knows[words[0]+" *"]...)
		for _, known := range all {
			if strings.TrimSuffix(known, "=") == name {
				return known
			}
		}
		return ""
	}

	for i := 1; i < len(words) && words[i] != "--"; i++ {
		name, _, hasValue := strings.Cut(words[i], "=")
		if !isOption.MatchString(name) {
			longer := command + " " + words[i]
			switch {
			case isKnown(longer):
				command = longer
				_, takesWords = knows[command]
			case !takesWords:
				return command + " knows no " + words[i]
			}
			continue
		}

		known := option(name)
		isLetters := name[1] != '-' && len(name) > 2 // -abc
		switch {
		case known == "" && isLetters:
			for _, letter := range name[1:] {
				if option("-"+string(letter)) == "" {
					return command + " knows no -" + string(letter) + " in " + name
				}
			}
			last := name[len(name)-1:]
			if strings.HasSuffix(option(last), "=") {
				i++
			}
		case known == "":
			return command + " knows no " + name
		case strings.HasSuffix(known, "=") && !hasValue:
			i++
		}
	}

	if !takesWords {
		return command + " is not a command"
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
	why := missingFile(words)
	if why != "" {
		return why
	}

	var inner []string // the command that another program runs: kubectl exec POD -- gpuadm status
	dashes := slices.Index(words, "--")
	if dashes > 0 {
		inner = words[dashes+1:]
	}

	name := path.Base(words[0])
	isOurs := name == "gpuadm" || words[0] == "/var/lib/gpuadm/daemonset"
	switch {
	case isOurs:
		return wrongOfOurs(words[1:], inner)
	case name == "chroot":
		return wrongOnPage(words[2:])
	case len(inner) > 0:
		why = wrongOnPage(inner)
	case name == "make":
		return wrongTarget(words[1])
	case name == "helm":
		why = wrongValue(words)
	}
	if why != "" {
		return why
	}

	if !isKnown(words[0]) {
		return "testdata/programs.txt does not have " + words[0]
	}
	return foreignOne(words)
}

// wrongOfOurs judges the arguments of gpuadm; for gpuadm ssh also the verb behind the dashes.
func wrongOfOurs(args, verb []string) string {
	if len(verb) > 0 {
		why := wrongOnPage(append([]string{"gpuadm"}, verb...))
		if why != "" {
			return why
		}
	}

	_, err := typed(env{getenv: func(string) string { return "" }}, args)
	if err != nil {
		return err.Error()
	}
	return ""
}

// missingFile looks for the files of this repository that a command names, also as --flag=FILE: the
// pages are read at the top of the source.
func missingFile(words []string) string {
	for _, word := range words {
		name := word[strings.LastIndexByte(word, '=')+1:]
		isOurs := strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "images/")
		if !isOurs {
			continue
		}
		if _, err := os.Stat("../../" + name); err != nil {
			return err.Error()
		}
	}
	return ""
}

func wrongTarget(target string) string {
	text, err := os.ReadFile("../../Makefile")
	if err != nil || !strings.Contains(string(text), "\n"+target+":") {
		return fmt.Sprintf("Makefile has no %s (%v)", target, err)
	}
	return ""
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
		setting, _, isSetting := strings.Cut(word, "=")
		isSet := slices.Contains([]string{"--set", "--set-file", "--set-string"}, words[i])
		if !isSetting || !isSet {
			continue
		}
		name, _, _ := strings.Cut(setting, "[")
		if !slices.Contains(chart, name) {
			return "the chart has no value " + name
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
	code := regexp.MustCompile("`([^`]+)`")
	prompt := regexp.MustCompile("(?m)^ *(sudo .+|\\$ .+|```(?:[a-z]*sh|shell|console))$")
	own := regexp.MustCompile(`^(?:sudo )?gpuadm [a-z][^…]*$`)
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
