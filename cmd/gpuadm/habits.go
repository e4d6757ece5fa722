// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// A habit is what users of another program type, and what does the same here. No list can have all
// habits, and none goes wrong by what it lacks: gpuadm answers any other word with the verb or flag
// that is spelled like it, or with the help. A test types each.
type habit struct {
	typed string // the first words: "config validate"; or a flag of a verb, or of any: "* --config"
	// here is gpuadm's command, in which WORD is the next word that was typed; of a flag, what
	// replaces it: another one, or "" for none.
	here  string
	key   string // or the key of node.toml that decides it
	drops bool   // the flag's value goes with it
}

// verbHabits are the verbs of kubeadm, nodeadm, kubectl, helm, terraform, nvidia-ctk and
// nvidia-mig-parted.
var verbHabits = []habit{
	{typed: "reset", here: "undo --to all"},
	{typed: "destroy", here: "undo --to all"},
	{typed: "uninstall", here: "undo --to all"},
	{typed: "remove", here: "undo --to all"},
	{typed: "delete", here: "undo --to all"},
	{typed: "purge", here: "undo --to all"},
	{typed: "clean", here: "undo --to all"},
	{typed: "rollback", here: "undo"},
	{typed: "revert", here: "undo"},
	{typed: "restore", here: "undo"},

	{typed: "install", here: "apply --install"},
	{typed: "bootstrap", here: "apply --install"},
	{typed: "up", here: "apply"},
	{typed: "run", here: "apply"},
	{typed: "sync", here: "apply"},
	{typed: "reconcile", here: "apply"},
	{typed: "setup", here: "apply"},
	{typed: "configure", here: "apply"},
	{typed: "start", here: "apply"},
	{typed: "resume", here: "apply"},
	{typed: "continue", here: "apply"},
	{typed: "retry", here: "apply"},
	{typed: "reboot", here: "apply --reboot"},
	{typed: "create", here: "init"},
	{typed: "new", here: "init"},
	{typed: "init phase", here: "help stages"},
	{typed: "phase", here: "help stages"},

	{typed: "check", here: "doctor"},
	{typed: "health", here: "doctor"},
	{typed: "diagnose", here: "doctor"},
	{typed: "explain", here: "doctor WORD"},
	{typed: "fix", here: "repair WORD"},
	{typed: "preflight", here: "plan"},
	{typed: "refresh", here: "plan"},
	{typed: "render", here: "plan -v"},
	{typed: "template", here: "manifest"},
	{typed: "diff", here: "status --diff"},
	{typed: "show", here: "status"},
	{typed: "get", here: "status"},
	{typed: "list", here: "status"},
	{typed: "state", here: "status"},
	{typed: "history", here: "status"},
	{typed: "verify", here: "status"},
	{typed: "test", here: "status"},
	{typed: "watch", here: "status"},
	{typed: "info", here: "facts"},
	{typed: "describe", here: "status -v"},
	{typed: "logs", here: "status -v"},
	{typed: "support", here: "bundle"},
	{typed: "must-gather", here: "bundle"},

	{typed: "lint", here: "validate"},
	{typed: "fmt", here: "validate"},
	{typed: "config check", here: "validate"},
	{typed: "config validate", here: "validate"},
	{typed: "config print", here: "config"},
	{typed: "config view", here: "config"},
	{typed: "config show", here: "config"},
	{typed: "config get", here: "config"},
	{typed: "config set", key: "each key below its [section], and gpuadm help spec lists them"},
	{typed: "config migrate", here: "validate"},

	{typed: "export", here: "mig export"},
	{typed: "assert", here: "plan mig"},
	{typed: "mig apply", here: "apply mig"},
	{typed: "mig create", here: "apply mig"},
	{typed: "mig assert", here: "plan mig"},
	{typed: "mig list", here: "mig profiles"},
	{typed: "mig show", here: "mig export"},
	{typed: "mig get", here: "mig export"},
	{typed: "mig status", here: "mig export"},
	{typed: "mig enable", key: "[[mig.gpu]], with a layout"},
	{typed: "mig disable", key: "[[mig.gpu]], with layout = {}"},
	{typed: "runtime", here: "apply runtime"},
	{typed: "cdi", here: "apply toolkit"},
	{typed: "system", here: "apply toolkit"},

	{typed: "upgrade", key: "version in [driver]"},
	{typed: "update", key: "version in [driver]"},
	{typed: "driver", key: "version in [driver]"},
	{typed: "edit", key: "each key below its [section], and gpuadm help spec lists them"},
	{typed: "set", key: "each key below its [section], and gpuadm help spec lists them"},
	{typed: "enable", key: "a [section] for each part to manage"},
	{typed: "disable", key: "no [section] for a part to leave alone"},
	{typed: "label", key: "labels in [node]"},
	{typed: "taint", key: "taints in [node]"},
	{typed: "drain", key: `policy = "drain" in [disruption]`},
	{typed: "cordon", key: `policy = "drain" in [disruption]`},
	{typed: "join", key: "[join], on a cloud's own Kubernetes; elsewhere kubeadm join follows an apply"},
}

// flagHabits are flags of other programs. VALUE is the value that was typed.
var flagHabits = []habit{
	{typed: "init --config", here: "apply -f VALUE"},
	{typed: "init --config-source", drops: true},
	{typed: "init --driver", key: "version in [driver]"},
	{typed: "* -L", here: "facts"},
	{typed: "mig -lgip", here: "mig profiles"},
	{typed: "mig -lgi", here: "mig export"},
	{typed: "mig -cgi", key: "[[mig.gpu]], with a layout"},
	{typed: "mig -dgi", key: "[[mig.gpu]], with layout = {}"},
	{typed: "mig -dci", key: "[[mig.gpu]], with layout = {}"},
	{typed: "* --config", here: "-f"},
	{typed: "* --spec", here: "-f"},
	{typed: "* --values", here: "-f"},
	{typed: "* --json", here: "-o json"},
	{typed: "* --color", here: "--no-color"},
	{typed: "* --debug", here: "-v"},
	{typed: "* --version", here: "version"},
	{typed: "* -V", here: "version"},
	{typed: "* --namespace", drops: true}, // gpuadm works on this machine, which is in no namespace
	{typed: "* -n", drops: true},
	{typed: "* --kubeconfig", key: "kubeconfig in [node]"},
	{typed: "* --timeout", here: "--deadline"},

	{typed: "apply --var-file", key: "each value below its [section], and gpuadm help spec lists them"},
	{typed: "apply --var", key: "each value below its [section], and gpuadm help spec lists them"},
	{typed: "plan --out", drops: true}, // apply plans again, each stage in its turn
	{typed: "plan --destroy", here: "undo --dry-run"},
	{typed: "plan --detailed-exitcode", here: "--exit-code"},
	{typed: "apply --destroy", here: "undo --to all"},
	{typed: "apply --auto-approve", here: "--yes"},
	{typed: "apply --check", here: "--dry-run"},
	{typed: "apply --diff", here: "plan -v"},
	{typed: "apply --force", here: "plan"},
	{typed: "apply --target", here: "apply VALUE"},
	{typed: "apply --stage", here: "apply VALUE"},
	{typed: "apply --only", here: "apply VALUE"},
	{typed: "apply --set-as-default", key: "set_as_default in [runtime]"},
	{typed: "apply --runtime", key: "engine in [runtime]"},
	{typed: "apply --driver-version", key: "version in [driver]"},

	{typed: "plan --dry-run"},
	{typed: "plan --yes"},
	{typed: "plan -y"},
	{typed: "plan --diff", here: "-v"},
	{typed: "plan --target", here: "plan VALUE"},
	{typed: "status --watch", here: "watch"},
	{typed: "status -w", here: "watch"},
	{typed: "version --short"},
	{typed: "version --client"},
	{typed: "doctor --fix", here: "repair"},
	{typed: "repair --force", here: "doctor"},

	{typed: "undo --all", here: "--to all"},
	{typed: "undo --last"},
	{typed: "undo --force", here: "--dry-run"},
	{typed: "undo --auto-approve", here: "--yes"},
}

// habitual answers a command line that another program would understand; nil if it is none. cobra
// reads the flags first, and would refuse the flags of a verb that gpuadm does not have; and it
// reads -file x as -f ile. counts are the words whose flags the answer's commands repeat.
func (e env) habitual(root *cobra.Command, args []string) (counts []string, err error) {
	words := leadingWords(args)
	completes := len(words) > 0 && strings.HasPrefix(words[0], cobra.ShellCompRequestCmd)
	if completes {
		return args, nil
	}
	cmd, rest, err := root.Find(args)
	if err != nil {
		return args, nil
	}

	isFile := func(word string) bool {
		if e.stat == nil {
			return false
		}
		_, err := e.stat(word)
		return err == nil
	}

	extra := leadingWords(rest)
	if len(extra) > 0 {
		h := verbHabit(words)
		takesWords := cmd.HasParent() && !cmd.HasSubCommands()
		isHabit := strings.Contains(h.typed, " ")
		if !takesWords || isHabit && !isFile(extra[0]) {
			counts = withoutMissing(args, isFile)
			at := slices.Index(args, extra[0])
			return counts, unknown(cmd, extra[0], h, args[at+1:]...)
		}
	}

	asksForHelp := slices.Contains(args, "--help") || slices.Contains(args, "-h")
	if asksForHelp {
		return args, nil
	}
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if !isWord(cmd, name) {
			counts = append(counts, arg)
		}
	}

	return counts, wrongFlags(cmd, args)
}

// withoutMissing is a command line without each -f whose file is not there: of kubectl logs -f POD
// it means something else.
func withoutMissing(args []string, isFile func(string) bool) (counts []string) {
	for i := 0; i < len(args); i++ {
		next := i + 1
		isOther := args[i] == "-f" && (next == len(args) || !isFile(args[next]))
		if isOther {
			i = next
			continue
		}
		counts = append(counts, args[i])
	}
	return counts
}

// leadingWords are the words before the first flag.
func leadingWords(args []string) []string {
	isFlag := func(arg string) bool { return strings.HasPrefix(arg, "-") }
	i := slices.IndexFunc(args, isFlag)
	if i < 0 {
		return args
	}
	return args[:i]
}

// verbHabit is the habit of some words, with the next word in WORD's place; the zero habit if they
// are none.
func verbHabit(words []string) (found habit) {
	line := strings.Join(words, " ") + " "
	for _, h := range verbHabits {
		if strings.HasPrefix(line, h.typed+" ") && len(h.typed) > len(found.typed) {
			found = h
		}
	}

	next := ""
	count := len(strings.Fields(found.typed))
	if count < len(words) {
		next = host.ShellWord(words[count])
	}
	found.here = strings.TrimSpace(strings.ReplaceAll(found.here, "WORD", next))
	return found
}

// try are the next steps that answer a habit; nil for the zero habit.
func (h habit) try() []string {
	switch {
	case h.here == "watch": // the system's own program
		return []string{"watch " + trouble.Command("status")}
	case h.key != "":
		return []string{"write it into node.toml: " + h.key, trouble.Command("plan")}
	case h.here != "":
		return []string{trouble.Command(h.here)}
	}
	return nil
}

// wrongFlags refuses flags of other programs, and long flags with one dash. The answer is the same
// line with gpuadm's flags.
func wrongFlags(cmd *cobra.Command, args []string) error {
	line := retyped{cmd: cmd, words: []string{"gpuadm"}}
	for len(args) > 0 && args[0] != "--" {
		taken, err := line.take(args)
		if err != nil {
			return err
		}
		args = args[taken:]
	}

	if line.wrong == "" {
		return nil
	}

	var words []string
	for _, word := range append(line.words, args...) {
		words = append(words, host.ShellWord(word))
	}
	return noSuchFlag(cmd, line.wrong, []string{strings.Join(words, " ")})
}

// retyped is a command line with gpuadm's flags.
type retyped struct {
	cmd   *cobra.Command
	words []string
	wrong string // the first flag of another program; "" = none
}

// take takes over the first of the words that were typed, together with the flag's value if that is
// a word of its own, and returns how many words these are.
func (l *retyped) take(args []string) (taken int, err error) {
	name, value, hasValue := strings.Cut(args[0], "=")
	rest := args[1:]
	var ofFlag []string // --deadline -5m: the next word is the value, whatever it looks like
	if !hasValue && strings.HasPrefix(name, "-") && takesValue(l.cmd, name) {
		ofFlag = rest[:min(1, len(rest))]
	}

	h, isWrong := flagHabit(l.cmd, name)
	if !isWrong {
		if isWord(l.cmd, name) {
			return 0, noSuchFlag(l.cmd, name, []string{l.cmd.CommandPath() + " --help"})
		}
		l.words = append(append(l.words, args[0]), ofFlag...)
		return 1 + len(ofFlag), nil
	}

	isFlag := h.key == "" && (h.here == "" || strings.HasPrefix(h.here, "-"))
	if !isFlag {
		if !hasValue && len(rest) > 0 {
			value = rest[0]
		}
		h.here = strings.ReplaceAll(h.here, "VALUE", stageWords(value))
		return 0, noSuchFlag(l.cmd, name, h.try())
	}

	l.wrong = cmp.Or(l.wrong, name)
	l.words = append(l.words, strings.Fields(h.here)...)
	switch {
	case h.drops && !hasValue:
		return min(2, len(args)), nil
	case hasValue && takesValue(l.cmd, h.here):
		l.words = append(l.words, value)
	}

	l.words = append(l.words, ofFlag...)
	return 1 + len(ofFlag), nil
}

// stageWords is a value that was typed, as shell text; of a section it is the section's stages.
func stageWords(value string) string {
	ofSection := stages.OfSection(value)
	if len(ofSection) > 0 {
		return strings.Join(ofSection, " ")
	}
	return host.ShellWord(value)
}

// takesValue says whether a flag of a verb takes a value, and has none yet.
func takesValue(cmd *cobra.Command, flag string) bool {
	f := lookup(cmd, strings.TrimLeft(flag, "-"))
	return f != nil && f.Value.Type() != "bool"
}

// flagHabit says whether a flag is another program's, or one of the verb's with a dash too few.
func flagHabit(cmd *cobra.Command, flag string) (h habit, is bool) {
	if !strings.HasPrefix(flag, "-") {
		return habit{}, false
	}
	word := strings.TrimLeft(flag, "-")
	long := "--" + word

	f := lookup(cmd, word)
	if f != nil {
		return habit{here: long}, f.Name == word && flag != long
	}
	for _, verb := range []string{cmd.Name(), "*"} {
		is := func(h habit) bool {
			return h.typed == verb+" "+long || h.typed == verb+" "+flag
		}
		i := slices.IndexFunc(flagHabits, is)
		if i >= 0 && takes(cmd, flagHabits[i].here) {
			return flagHabits[i], true
		}
	}

	return habit{}, false
}

// isWord says whether a flag with one dash is a whole word, as other programs have them: -force. It
// is none where each letter is a flag's, or where the first letter's flag can have the rest as its
// value: -vq, -ojson, -f=x, -fnode.toml.
func isWord(cmd *cobra.Command, flag string) bool {
	isShort := strings.HasPrefix(flag, "-") && !strings.HasPrefix(flag, "--")
	if !isShort || len(flag) < 3 {
		return false
	}

	for i, letter := range flag[1:] {
		f := lookup(cmd, string(letter))
		rest := flag[1+i+1:]
		switch {
		case f == nil:
			return true
		case f.Value.Type() == "bool":
		case f.Name == "output" && rest != "":
			return !slices.Contains([]string{"text", "json"}, rest) && f.Annotations[noVariable] == nil
		default:
			return rest != "" && !strings.ContainsAny(rest, "./-~")
		}
	}

	return false
}

// takes says whether a verb has the flag that a habit names instead; a habit may name none.
func takes(cmd *cobra.Command, here string) bool {
	flag, _, _ := strings.Cut(here, " ")
	return !strings.HasPrefix(flag, "-") || lookup(cmd, strings.TrimLeft(flag, "-")) != nil
}

// lookup returns a flag of a verb, or of all verbs, by its name or letter.
func lookup(cmd *cobra.Command, name string) *pflag.Flag {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags()} {
		f := flags.Lookup(name)
		if f == nil && len(name) == 1 {
			f = flags.ShorthandLookup(name)
		}
		if f != nil {
			return f
		}
	}
	return nil
}

func noSuchFlag(cmd *cobra.Command, flag string, try []string) error {
	return usage{&trouble.Error{
		What: "cannot use " + flag + ": " + cmd.CommandPath() + " has no such flag",
		Try:  try,
	}}
}
