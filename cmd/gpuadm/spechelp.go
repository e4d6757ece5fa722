// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// specTopic is `gpuadm help spec`. Its text is put together when it is asked for.
func specTopic() *cobra.Command {
	topic := &cobra.Command{Use: "spec", Short: "what node.toml may say (gpuadm help spec)"}
	topic.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Long = specHelp()
		c.Parent().HelpFunc()(c, args)
	})
	return topic
}

// specHelp lists every key of node.toml, from the table that also checks it.
func specHelp() string {
	var b strings.Builder
	b.WriteString("The spec is /etc/gpuadm/node.toml, then /etc/gpuadm/node.d/*.toml in name order; later\nwins by key. Without a section its stage looks and reports, but wants nothing.\n")
	section := "-"
	for _, k := range spec.Keys() {
		if k.Section != section {
			section = k.Section
			if section != "" {
				fmt.Fprintf(&b, "\n[%s]\n", section)
			} else {
				b.WriteString("\n")
			}
		}
		def := k.Default
		if def == "" {
			def = "…"
		}
		doc := k.Doc
		if len(k.Allowed) > 0 {
			doc += " (" + strings.Join(k.Allowed, ", ") + ")"
		}
		fmt.Fprintf(&b, "  %-30s # %s\n", k.Name+" = "+def, doc)
	}
	return b.String()
}
