// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// group makes a verb that only groups others: alone it shows its help, and an unknown word is an error. cobra would show the help
// for that too, and exit with 0: a script with a typing error would continue.
func group(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args[0])
		}
		return cmd.Help()
	}
}

// strictHelp makes help of a word that is no verb an error.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err != nil {
			return usage{err}
		} else if len(rest) > 0 {
			return unknown(cmd, rest[0])
		}
		cmd.InitDefaultHelpFlag()
		return cmd.Help()
	}
}

func unknown(cmd *cobra.Command, word string) error {
	return usage{fmt.Errorf("unknown command %q for %q; see %s --help", word, cmd.CommandPath(), cmd.CommandPath())}
}
