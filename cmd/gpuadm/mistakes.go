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
			return unknown(cmd, args[0])
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
			return unknown(cmd, rest[0])
		}
		cmd.InitDefaultHelpFlag()
		return cmd.Help()
	}
}

// others maps verbs of other programs to gpuadm's. No list can have them all, and none goes wrong
// by what it lacks: gpuadm answers an unknown word with the verb that is spelled like it, or with
// its help. A test types each entry.
var others = map[string]string{
	"reset": "undo --to all", "destroy": "undo --to all", "uninstall": "undo --to all", "remove": "undo --to all",
	"rollback": "undo", "revert": "undo",
	"check": "doctor", "diagnose": "doctor", "explain": "doctor",
	"install": "apply --install", "bootstrap": "apply --install",
	"up": "apply", "run": "apply", "sync": "apply",
	"diff": "status --diff", "show": "status", "logs": "status -v",
	"render": "plan -v", "export": "mig export", "lint": "validate",
}

// specKeys maps verbs of other programs to keys of node.toml.
var specKeys = map[string]string{
	"upgrade": "version in [driver]",
	"update":  "version in [driver]",
	"driver":  "version in [driver]",
	"label":   "labels in [node]",
	"taint":   "taints in [node]",
	"drain":   `policy = "drain" in [disruption]`,
	"join":    "[join], on a cloud's own Kubernetes; elsewhere kubeadm join follows an apply",
}

// flags maps flags that a verb does not have to what does the same.
var flags = map[string]string{
	"undo --all":     "undo --to all",
	"undo --last":    "undo",
	"doctor --fix":   "repair",
	"plan --dry-run": "plan",
	"apply --check":  "plan",
	"status --watch": "status -v",
}

// wrongFlag names the flag that a wrong one may be meant for.
func wrongFlag(cmd *cobra.Command, err error) error {
	t := &trouble.Error{
		What: fmt.Sprintf("cannot read the flags of %s: %v", cmd.CommandPath(), err),
		Try:  []string{cmd.CommandPath() + " --help"},
	}

	var unknownFlag *pflag.NotExistError
	if errors.As(err, &unknownFlag) {
		word := unknownFlag.GetSpecifiedName()
		command := flags[cmd.Name()+" --"+word]
		like := flagLike(cmd, word)
		switch {
		case command != "":
			t.Try = []string{trouble.Command(command)}
		case like != "":
			t.Try = []string{cmd.CommandPath() + " --" + like}
		}
	}
	return usage{t}
}

// flagLike is the flag of a verb that a word may mean.
func flagLike(cmd *cobra.Command, word string) string {
	if word == "json" {
		return "output json"
	}

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
	if flag != "" {
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
	case "bake":
		return "--root"
	case "bundle", "mirror":
		return "-o"
	}
	return ""
}

// unknown refuses an unknown verb, and names what it may be meant for.
func unknown(cmd *cobra.Command, word string) error {
	var verbs []string
	for _, v := range cmd.Commands() {
		if !v.Hidden {
			verbs = append(verbs, v.Name())
		}
	}

	try := []string{cmd.CommandPath() + " --help"}
	command := others[word]
	key := specKeys[word]
	like := nearest.Of(word, verbs)
	isTop := !cmd.HasParent()
	switch {
	case isTop && command != "":
		try = []string{trouble.Command(command)}
	case isTop && key != "":
		try = []string{"write it into node.toml: " + key, trouble.Command("plan")}
	case like != "":
		try = []string{cmd.CommandPath() + " " + like}
	}
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot find the command %q of %s", word, cmd.CommandPath()),
		Try:  try,
	}}
}
