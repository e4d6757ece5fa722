// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// group makes a verb that only groups others: alone it shows its help, and an unknown word is an
// error. cobra would show the help for an unknown word too, and exit with 0: a script with a typing
// error would continue.
func group(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args[0], habit{})
		}
		return cmd.Help()
	}
}

// strictHelp makes help for an unknown verb an error.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}

	help.Short = "show the help of a verb or a topic"
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err != nil {
			return usage{err}
		}
		if len(rest) > 0 {
			return unknown(cmd, rest[0], verbHabit(rest))
		}
		cmd.InitDefaultHelpFlag()
		return cmd.Help()
	}
}

// strictCompletion makes completion for an unknown shell an error.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err == nil && completion != root {
		group(completion)
	}
}

// wrongFlag names the flag that a wrong one may be meant for.
func wrongFlag(cmd *cobra.Command, err error) error {
	t := &trouble.Error{
		What: fmt.Sprintf("cannot read the flags of %s: %v", cmd.CommandPath(), err),
		Try:  []string{cmd.CommandPath() + " --help"},
	}

	var wrongValue *pflag.InvalidValueError
	if errors.As(err, &wrongValue) && wrongValue.GetFlag().Value.Type() == "duration" {
		t.Try = []string{"write the unit: 90s, 10m, 1h"}
	}
	var unknownFlag *pflag.NotExistError
	if errors.As(err, &unknownFlag) {
		like := flagLike(cmd, unknownFlag.GetSpecifiedName())
		if like != "" {
			t.Try = []string{cmd.CommandPath() + " --" + like}
		}
	}
	return usage{t}
}

// flagLike is the flag of a verb that a word may mean.
func flagLike(cmd *cobra.Command, word string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return nearest.Of(word, names)
}

// noArgs refuses words where a verb takes only flags, and names the flag that the first word may be
// meant for.
func noArgs(cmd *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}

	try := cmd.CommandPath() + " --help"
	flag := flagOfWord(cmd.Name(), words[0])
	switch {
	case cmd.Name() == "bake":
		try = "mount the image, and name the folder: " + cmd.CommandPath() + " --root DIR"
	case flag != "":
		try = cmd.CommandPath() + " " + flag + " " + host.ShellWord(words[0])
	}
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot use %q: %s takes no words but flags", words[0], cmd.CommandPath()),
		Try:  []string{try},
	}}
}

// flagOfWord is the flag of a verb whose value a word may be.
func flagOfWord(verb, word string) string {
	switch verb {
	case "undo":
		isRun := word == "all" || strings.ContainsAny(word, pattern.Digits)
		if isRun {
			return "--to"
		}
	case "bundle", "mirror":
		return "-o"
	case "profiles", "fit", "generate":
		return "--gpu"
	}
	return ""
}

// unknown refuses an unknown verb, and names what it may be meant for.
func unknown(cmd *cobra.Command, word string, h habit) error {
	var verbs []string
	for _, v := range cmd.Commands() {
		if !v.Hidden {
			verbs = append(verbs, v.Name())
		}
	}

	try := h.try()
	like := nearest.Of(word, verbs)
	switch {
	case try != nil:
	case like != "":
		try = []string{cmd.CommandPath() + " " + like}
	default:
		try = []string{cmd.CommandPath() + " --help"}
	}
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot find the command %q of %s", word, cmd.CommandPath()),
		Try:  try,
	}}
}
