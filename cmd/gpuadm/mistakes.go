// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
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
		if len(rest) > 0 && cmd.HasParent() {
			return unknown(cmd, rest[0], habit{}) // gpuadm help plan runtime
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
	if err != nil || completion == root {
		return
	}
	group(completion)
	for _, shell := range completion.Commands() {
		shell.Args = noArgs
	}
}

// wrongFlag says what is wrong with a flag, and names the flag that a wrong one may be meant for.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var needed *pflag.ValueRequiredError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := dashed(unknown.GetSpecifiedName())
		try := cmd.CommandPath() + " --help"
		if like := flagLike(cmd, unknown.GetSpecifiedName()); like != "" {
			try = cmd.CommandPath() + " --" + like
		}
		return noSuchFlag(cmd, name, []string{try})

	case errors.As(err, &needed):
		f := needed.GetFlag()
		value, _ := pflag.UnquoteUsage(f)
		name := dashed(needed.GetSpecifiedName())
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot use %s without its value", name),
			Try:  []string{fmt.Sprintf("%s %s %s", cmd.CommandPath(), name, value)},
		}}

	case errors.As(err, &wrong):
		return wrongFlagValue("--"+wrong.GetFlag().Name, wrong.GetFlag(), wrong.GetValue())
	}

	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot read the flags of %s: %v", cmd.CommandPath(), err),
		Try:  []string{cmd.CommandPath() + " --help"},
	}}
}

// dashed is a flag's name as it is typed: -f, --file.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// wrongFlagValue refuses the value of a flag, or of the variable that stands for it.
func wrongFlagValue(typed string, f *pflag.Flag, value string) error {
	takes := "another value"
	try := "gpuadm --help"
	switch f.Value.Type() {
	case "bool":
		takes = "true or false"
		try = typed + "=true"
	case "duration":
		takes = "a time with its unit"
		try = "write the unit: 90s, 10m, 1h"
	case "int":
		takes = "a whole number"
		try = typed + "=" + f.DefValue
	}

	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot use %s=%s: it takes %s", typed, host.ShellWord(value), takes),
		Try:  []string{try},
	}}
}

// emptyValue refuses a flag with an empty value: a shell variable that is not set makes one, and
// --root "" would mean the current folder.
func emptyValue(cmd *cobra.Command, f *pflag.Flag) error {
	isEmpty := f.Value.Type() == "string" && f.Value.String() == ""
	if list, is := f.Value.(pflag.SliceValue); is {
		all := list.GetSlice()
		isEmpty = len(all) == 0 || slices.Contains(all, "")
	}
	if !f.Changed || !isEmpty {
		return nil
	}

	value, _ := pflag.UnquoteUsage(f)
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot use --%s: its value is empty", f.Name),
		Try: []string{fmt.Sprintf(
			"%s --%s %s; if a shell variable has it, set that first",
			cmd.CommandPath(), f.Name, value,
		)},
	}}
}

// notOneOf refuses a value that is not among a few, and names the one that it may be meant for.
func notOneOf(cannot, value, takes string, known []string) error {
	t := &trouble.Error{
		What: fmt.Sprintf("cannot %s %q: %s takes %s", cannot, value, takes, strings.Join(known, ", ")),
	}
	if like := nearest.Of(value, known); like != "" {
		t.Try = []string{"did you mean " + like + "?"}
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

// atMostOne refuses a second word where a verb takes one.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, words []string) error {
		if len(words) < 2 {
			return nil
		}
		t := &trouble.Error{
			What: fmt.Sprintf("cannot use %q: %s takes one %s", words[1], cmd.CommandPath(), what),
		}
		for _, word := range words {
			t.Try = append(t.Try, cmd.CommandPath()+" "+host.ShellWord(word))
		}
		return usage{t}
	}
}

// usageErrors makes what a verb says of its words an error of the command line.
func usageErrors(cmd *cobra.Command) {
	check := cmd.Args
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, words []string) error {
			err := check(cmd, words)
			if err == nil || errors.As(err, &usage{}) {
				return err
			}
			return usage{err}
		}
	}

	for _, sub := range cmd.Commands() {
		usageErrors(sub)
	}
}

// unknown refuses an unknown verb, and names what it may be meant for: the same line,
// with that verb.
func unknown(cmd *cobra.Command, word string, h habit, more ...string) error {
	var verbs []string
	for _, v := range cmd.Commands() {
		if v.IsAvailableCommand() { // no topic of the help
			verbs = append(verbs, v.Name())
		}
	}

	try := h.try()
	like := nearest.Of(word, verbs)
	switch {
	case try != nil:
	case like != "":
		line := cmd.CommandPath() + " " + like
		for _, m := range more {
			line += " " + host.ShellWord(m)
		}
		try = []string{line}
	default:
		try = []string{cmd.CommandPath() + " --help"}
	}

	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot find the command %q of %s", word, cmd.CommandPath()),
		Try:  try,
	}}
}
