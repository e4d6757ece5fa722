// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestVerbTyped: the verb that a command line begins with is made alone, and as it is made beside all others.
func TestVerbTyped(t *testing.T) {
	all := newRoot(env{})
	for _, g := range verbs() {
		for _, v := range g.verbs {
			want, _, err := all.Find([]string{v.name})
			if err != nil || want.Name() != v.name {
				t.Errorf("%s is no verb: %v", v.name, err)
				continue
			}
			alone := newRoot(env{args: []string{v.name, "x"}})
			got, _, err := alone.Find([]string{v.name})
			if err != nil || len(alone.Commands()) != 1 || flags(got) != flags(want) || got.UsageString() != want.UsageString() {
				t.Errorf("%s alone: %v", v.name, err)
			}
		}
	}
	for _, args := range [][]string{nil, {"help", "apply"}, {"-q", "apply"}, {"appl"}, {"completion", "bash"}, {cobra.ShellCompRequestCmd, "apply"}, {"--help"}} {
		if got := newRoot(env{args: args}); len(got.Commands()) != len(all.Commands()) {
			t.Errorf("%q: %d verbs", args, len(got.Commands()))
		}
	}
}

func flags(cmd *cobra.Command) (names string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names += f.Name + " " + f.DefValue + "\n" })
	return names
}
