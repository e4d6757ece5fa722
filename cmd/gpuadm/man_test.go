// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// page is a man page while it is written, in the macros of man(7).
type page struct{ strings.Builder }

// text escapes what roff would read as its own: backslashes, hyphens that are typed, and a dot or a
// quote that begins a line.
func (p *page) text(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func (p *page) section(name string) { fmt.Fprintf(p, ".SH %q\n", name) }

// prose writes text as it is, line by line: help texts have lists and examples in them.
func (p *page) prose(s string) {
	p.WriteString(".nf\n")
	for line := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
		p.WriteString(p.text(line) + "\n")
	}
	p.WriteString(".fi\n")
}

func (p *page) item(term, s string) {
	fmt.Fprintf(p, ".TP\n.B %s\n%s\n", p.text(term), p.text(s))
}

func (p *page) flags(set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		p.item(strings.TrimSpace(name+" "+value), usage)
	})
}

// verbs writes a command's verbs, and theirs.
func (p *page) verbs(cmd *cobra.Command) {
	for _, v := range cmd.Commands() {
		if !v.IsAvailableCommand() || v.Name() == "completion" || v.Name() == "help" {
			continue
		}
		fmt.Fprintf(p, ".SS %q\n", p.text(v.CommandPath()))
		describe(v)
		about := v.Long
		if about == "" {
			about = v.Short
		}
		p.prose(about)
		if v.Example != "" {
			p.WriteString(".PP\n")
			p.prose(v.Example)
		}
		p.flags(v.LocalNonPersistentFlags())
		p.verbs(v)
	}
}

// TestManPages: docs/man has the pages that the help texts and the spec's table make.
func TestManPages(t *testing.T) {
	root := newRoot(env{getenv: func(string) string { return "" }})
	topic := map[string]string{}
	for _, cmd := range append(root.Commands(), root) {
		describe(cmd)
		topic[cmd.Name()] = cmd.Long
	}

	var verbs page
	fmt.Fprintf(&verbs, ".TH GPUADM 8\n")
	verbs.section("NAME")
	verbs.WriteString(`gpuadm \- ` + verbs.text(root.Short) + "\n")
	verbs.section("SYNOPSIS")
	verbs.WriteString(".B gpuadm\n.I VERB\n.RI [ FLAG ...]\n")
	verbs.section("DESCRIPTION")
	verbs.prose(root.Long)
	verbs.section("VERBS")
	verbs.verbs(root)
	verbs.section("OPTIONS")
	verbs.flags(root.PersistentFlags())
	verbs.section("EXIT STATUS")
	verbs.prose(topic["exit"])
	verbs.section("ENVIRONMENT")
	verbs.prose(topic["environment"])
	verbs.section("FILES")
	verbs.item("/etc/gpuadm/node.toml, /etc/gpuadm/node.d/*.toml", "the desired state of the node: gpuadm-node.toml(5)")
	verbs.item("/var/lib/gpuadm", "the journal, what undo needs, and the spec that was applied last")
	verbs.section("SEE ALSO")
	verbs.WriteString(".BR gpuadm\\-node.toml (5)\n")
	held(t, "gpuadm.8", verbs.String())

	var keys page
	fmt.Fprintf(&keys, ".TH GPUADM-NODE.TOML 5\n")
	keys.section("NAME")
	keys.WriteString("gpuadm\\-node.toml \\- the desired state of a node with NVIDIA GPUs\n")
	keys.section("DESCRIPTION")
	intro, _, _ := strings.Cut(topic["spec"], "\n\n")
	keys.prose(intro)
	section := "-"
	for _, k := range spec.Keys() {
		if k.Section != section {
			section = k.Section
			name := "AT THE TOP"
			if section != "" {
				name = "[" + section + "]"
			}
			keys.section(name)
			if about := spec.About(section); about != "" {
				keys.prose(strings.ToUpper(about[:1]) + about[1:] + ".")
			}
		}

		about := k.Doc + "."
		if len(k.Allowed) > 0 {
			about += " One of " + strings.Join(k.Allowed, ", ") + "."
		}
		def := "it must be given"
		if k.Default != "" {
			def = "default " + k.Default
		}
		keys.item(k.Name, fmt.Sprintf("%s (%s; %s)", about, k.Type, def))
	}

	keys.section("SEE ALSO")
	keys.WriteString(".BR gpuadm (8)\n")
	held(t, "gpuadm-node.toml.5", keys.String())
}

// held compares a page with the one in docs/man.
func held(t *testing.T, name, text string) {
	t.Helper()
	file := "../../docs/man/" + name
	text = ".\\\" Written by go test ./cmd/gpuadm -run TestManPages -update\n" + text
	if *update {
		must.OK(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	check.That(t, err == nil && string(want) == text, "%s is not as the help texts say (%v); if that is meant: make update", file, err)
}

// flagVariables are the variables of all flags of all verbs.
func flagVariables(cmd *cobra.Command) []string {
	var all []string
	add := func(f *pflag.Flag) { all = append(all, variable(f.Name)) }
	cmd.PersistentFlags().VisitAll(add)
	cmd.Flags().VisitAll(add)
	for _, sub := range cmd.Commands() {
		all = append(all, flagVariables(sub)...)
	}
	return all
}

// TestEnvironment: the variables that the code names are those of gpuadm help environment and of
// docs/environment.md.
func TestEnvironment(t *testing.T) {
	word := regexp.MustCompile(`GPUADM_[A-Z_]*[A-Z]`)
	var documented []string
	for _, name := range []string{"../../docs/environment.md", "help/environment.txt"} {
		documented = append(documented, word.FindAllString(string(must.Get(os.ReadFile(name))(t)), -1)...)
	}
	of := flagVariables(newRoot(env{getenv: func(string) string { return "" }}))
	named := map[string]string{}
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".sh", ".service", ".yaml", ".txtar"}, filepath.Ext(name)) {
			return err
		}
		data, err := os.ReadFile(name)
		for _, v := range word.FindAllString(string(data), -1) {
			named[v] = name
		}
		return err
	})
	must.OK(t, err)
	delete(named, "GPUADM_TEST")    // of a test of AskWith
	delete(named, "GPUADM_VERSION") // of a test that it is not read
	for v, where := range named {
		check.That(t, slices.Contains(documented, v) || slices.Contains(of, v), "%s is in %s and on neither page", v, where)
	}
	for _, v := range documented {
		check.That(t, named[v] != "" || slices.Contains(of, v), "%s is documented, and nothing reads it", v)
	}
}
