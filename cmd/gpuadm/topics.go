// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/stages"
)

// helpPages has a page for each verb, with what it does and examples, and one for each topic.
//
//go:embed help
var helpPages embed.FS

// topics returns the pages of `gpuadm help` that belong to no verb.
func topics() (all []*cobra.Command) {
	for _, t := range [][2]string{
		{"spec", "what node.toml may say"},
		{"stages", "the stages, in their order"},
		{"exit", "what the exit codes mean, and what a script does with each"},
		{"environment", "which environment variables gpuadm reads"},
	} {
		all = append(all, &cobra.Command{Use: t[0], Short: t[1]})
	}
	return all
}

// describe gives a verb or a topic its page, which gpuadm reads only to print it.
func describe(cmd *cobra.Command) {
	name := strings.ReplaceAll(strings.TrimPrefix(cmd.CommandPath(), "gpuadm "), " ", "-")
	data, err := helpPages.ReadFile("help/" + name + ".txt")
	if err != nil {
		return // the short text is enough
	}

	text, examples, _ := strings.Cut("\n"+string(data), "\nExamples:\n")
	cmd.Long = strings.Trim(text, "\n")
	cmd.Example = strings.TrimRight(examples, "\n")
	switch name {
	case "spec":
		cmd.Long += "\n" + keysHelp()
	case "stages":
		cmd.Long += "\n\n"
		for _, st := range stages.Sequence() {
			cmd.Long += fmt.Sprintf("  %-12s %s\n", st.Name, st.About)
		}
	}
}

// keysHelp lists every key of node.toml, from the table that also has the checks.
func keysHelp() string {
	var b strings.Builder
	section := "-"
	for _, k := range spec.Keys() {
		if k.Section != section {
			section = k.Section
			b.WriteString(sectionHelp(section))
		}

		value := cmp.Or(k.Default, "…")
		doc := k.Doc
		if len(k.Allowed) > 0 {
			doc += " (" + strings.Join(k.Allowed, ", ") + ")"
		}
		fmt.Fprintf(&b, "  %-30s # %s\n", k.Name+" = "+value, doc)
	}

	return b.String()
}

func sectionHelp(section string) string {
	if section == "" {
		return "\n"
	}
	return fmt.Sprintf("\n%-32s # %s\n", "["+section+"]", spec.About(section))
}
