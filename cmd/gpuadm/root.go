// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// common has the flags of every verb.
type common struct {
	env
	files    []string
	rootDir  string
	output   string
	quiet    bool
	verbose  bool
	noColor  bool
	booting  bool       // the boot unit has started gpuadm
	run      *agent.Run // the engine, and its reports to the cluster
	bakes    bool       // the verb is bake
	repairs  bool       // the apply is a repair, and chosen is its code
	shown    []string   // stages whose details a plan shows
	planVerb string     // the verb that shows a plan, if it is not plan
	chosen   []string   // stages and flags that select what to apply, for printed commands
}

// inOrder has the help list the verbs in the order of their use.
var inOrder = sync.OnceFunc(func() { cobra.EnableCommandSorting = false })

// newRoot returns the root command with all verbs.
func newRoot(e env) *cobra.Command {
	c := &common{env: e}
	c.stdout, c.stderr = c.screen(e.stdout), c.screen(e.stderr)
	root := &cobra.Command{
		Use:               "gpuadm",
		Short:             "turn a machine with NVIDIA GPUs into a Kubernetes node",
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.check(cmd) },
	}
	group(root)
	inOrder()
	root.SetIn(e.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetFlagErrorFunc(wrongFlag)
	f := root.PersistentFlags()
	f.StringArrayVarP(&c.files, "file", "f", nil, "read the spec from `FILE` (- is stdin) in place of /etc/gpuadm; repeatable, later wins by key")
	f.StringVar(&c.rootDir, "root", "/", "work on the files of a machine in `DIR` (an image, a mounted disk); nothing runs there")
	f.StringVarP(&c.output, "output", "o", "text", "`FORM` of the answer: text or json")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "print only the answer and errors")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "also print details, and what is converged already")
	f.BoolVar(&c.noColor, "no-color", false, "use no colour; NO_COLOR does the same")
	for i, g := range c.verbs() {
		id := strconv.Itoa(i)
		root.AddGroup(&cobra.Group{ID: id, Title: g.title + ":"})
		for _, verb := range g.verbs {
			verb.GroupID = id
			root.AddCommand(verb)
		}
		root.SetHelpCommandGroupID(id)
		root.SetCompletionCommandGroupID(id)
	}
	for _, verb := range c.served() {
		verb.Hidden = true
		root.AddCommand(verb)
	}
	root.AddCommand(topics()...)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text strings.Builder
		describe(cmd)
		cmd.Long = sentence().ReplaceAllString(cmd.Long, "$1 ")
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(nil)
		width := c.width(c.stdout)
		if width == 0 || width > 100 {
			width = 80
		}
		printf(c.stdout, "%s", verbatim(fold(text.String(), width)))
	})
	root.Version = version()
	root.MarkPersistentFlagDirname("root")
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	strictHelp(root)
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// sentence is the end of a line whose sentence goes on in the next one.
var sentence = pattern.Of(`(?m)^(\S.*)\n\b`)

// A verbGroup is a part of the help.
type verbGroup struct {
	title string
	verbs []*cobra.Command
}

// verbs returns the verbs for operators, in the order and the groups of the help.
func (c *common) verbs() []verbGroup {
	return []verbGroup{
		{"Make a machine a node", []*cobra.Command{newInit(c), newValidate(c), newPlan(c), newApply(c), newStatus(c), newUndo(c)}},
		{"Find and fix faults", []*cobra.Command{newDoctor(c), newRepair(c)}},
		{"Images, sites without a network, other machines", []*cobra.Command{newBake(c), newMirror(c), newSSH(c)}},
		{"Look", []*cobra.Command{newConfig(c), newMIG(c), newOwners(c), newFacts(c), newManifest(c), newBundle(c)}},
		{"About gpuadm", []*cobra.Command{newVersion(c)}},
	}
}

// served returns the verbs that units, kubelet, apt and pods run. The help does not list them.
func (c *common) served() []*cobra.Command {
	return append(c.children(), newGate(c), newDaemonSet(c), newToken(c), newServeSSH(c))
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	e.args, e.ended = args, &ending{}
	root := newRoot(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	e.stdout, e.stderr = root.OutOrStdout(), root.ErrOrStderr()
	return report(e, cmd, err)
}

// noVariable marks a flag that reuses a common flag's name for something else: its GPUADM_*
// variable sets only the common flag.
const noVariable = "gpuadm-no-variable"

// check refuses wrong values of the common flags, and reads missing flags from GPUADM_* variables.
func (c *common) check(cmd *cobra.Command) error {
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Value.Type() == "stringSlice" && f.Value.String() == "[]" {
			err = usage{fmt.Errorf("cannot use --%s: it takes at least one value", f.Name)}
		}
		if _, own := f.Annotations[noVariable]; own {
			return
		}
		name := variable(f.Name)
		if v := c.getenv(name); v != "" && !f.Changed && f.Name != "help" && f.Name != "version" && err == nil {
			if serr := cmd.Flags().Set(f.Name, v); serr != nil {
				err = usage{fmt.Errorf("cannot use %s=%q: %w", name, v, serr)}
			}
		}
	})
	if err == nil && c.output != "text" && c.output != "json" {
		err = usage{fmt.Errorf("cannot print as %q: -o takes text or json", c.output)}
	}
	return err
}

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return "GPUADM_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// engine opens the machine, reads the spec and chooses the stages.
func (c *common) engine(ctx context.Context, only, skip []string) (*converge.Engine, host.Host, error) {
	c.chosen = slices.Clone(only)
	for _, name := range skip {
		c.chosen = append(c.chosen, "--skip", name)
	}
	h, err := c.open(c.rootDir)
	if err != nil {
		return nil, nil, err
	}
	e, all := c.newEngine(h)
	sequence, err := choose(all, only, skip)
	if err != nil {
		return nil, nil, err
	}
	c.warnOfWriters()
	s, err := c.spec(h, c.files)
	if err != nil {
		return nil, nil, err
	}
	if err := c.run.Follow(ctx, &s); err != nil {
		return nil, nil, err
	}
	e.Stages, e.Before, e.Spec, e.Brief = sequence, all, s, c.quiet && c.output != "json"
	return e, h, nil
}

// newEngine returns an engine without stages for a machine, and the list of all stages.
func (c *common) newEngine(h host.Host) (*converge.Engine, []converge.Stage) {
	known := new(node.Session)
	all, thingOf := stages.Run(known)
	e := &converge.Engine{Stages: []converge.Stage{}, ThingOf: thingOf, Clients: devices.Clients, Prune: stages.Prune, Version: version()}
	c.run = &agent.Run{Engine: e, Host: h, Node: known, Say: c.say}
	return e, all
}

// choose returns the stages asked for, in the sequence's order.
func choose(all []converge.Stage, only, skip []string) ([]converge.Stage, error) {
	var chosen []converge.Stage
	known := map[string]bool{}
	for _, st := range all {
		known[st.Name] = true
		if (len(only) == 0 || slices.Contains(only, st.Name)) && !slices.Contains(skip, st.Name) {
			chosen = append(chosen, st)
		}
	}
	for _, name := range append(append([]string{}, only...), skip...) {
		if !known[name] {
			try := "gpuadm help stages lists them"
			if strings.HasSuffix(name, ".toml") {
				try = "a spec is named with -f"
			}
			return nil, usage{&trouble.Error{What: fmt.Sprintf("cannot find stage %q", name), Try: []string{try}}}
		}
	}
	return chosen, nil
}

// stageNames completes the names of stages.
func stageNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, st := range stages.Sequence() {
		names = append(names, st.Name+"\t"+st.About)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// onSignal closes the channel at the first SIGTERM or SIGINT: the run finishes the current change,
// then stops. A second signal ends the process at once. The loss of the terminal or the connection
// does not stop a run.
//
// onSignal does not wait for the signal thread to start (up to a millisecond): an earlier signal
// ends a process that has changed nothing.
func onSignal(say func()) (<-chan struct{}, func()) {
	sig, stop, ready := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Ignore(syscall.SIGHUP)
	go func() {
		signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT)
		close(ready)
		if _, ok := <-sig; ok {
			signal.Stop(sig)
			close(stop)
			say()
		}
	}()
	return stop, func() { <-ready; signal.Stop(sig); close(sig) }
}

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
	help.Run, help.Short = nil, "show the help of a verb or a topic"
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

// others maps verbs of other programs to gpuadm's. No list can have them all, and none goes wrong
// by what it lacks: gpuadm answers an unknown word with the verb that is spelled like it, or with
// its help. A test types each entry.
var others = map[string]string{
	"reset": "undo --to all", "destroy": "undo --to all", "uninstall": "undo --to all", "remove": "undo --to all", "rollback": "undo", "revert": "undo",
	"check": "doctor", "diagnose": "doctor", "explain": "doctor", "install": "apply --install", "bootstrap": "apply --install", "up": "apply", "run": "apply",
	"sync": "apply", "diff": "status --diff", "show": "status", "render": "plan -v", "logs": "status -v", "export": "mig export", "lint": "validate",
}

// stated maps verbs of other programs to keys of node.toml.
var stated = map[string]string{
	"upgrade": "version in [driver]", "update": "version in [driver]", "driver": "version in [driver]", "label": "labels in [node]", "taint": "taints in [node]",
	"drain": `policy = "drain" in [disruption]`, "join": "[join], on EKS, AKS and GKE; elsewhere kubeadm join follows an apply",
}

// flags maps flags that a verb has not to what does what they ask for.
var flags = map[string]string{"undo --all": "undo --to all", "undo --last": "undo", "doctor --fix": "repair", "plan --dry-run": "plan", "apply --check": "plan", "status --watch": "status -v"}

// wrongFlag names the flag that a wrong one may be meant for.
func wrongFlag(cmd *cobra.Command, err error) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot read the flags of %s: %v", cmd.CommandPath(), err), Try: []string{cmd.CommandPath() + " --help"}}
	if none := new(pflag.NotExistError); errors.As(err, &none) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		word := none.GetSpecifiedName()
		if other := flags[cmd.Name()+" --"+word]; other != "" {
			t.Try = []string{trouble.Command(other)}
		} else if like := cmp.Or(map[string]string{"json": "output json"}[word], nearest.Of(word, names)); like != "" {
			t.Try = []string{cmd.CommandPath() + " --" + like}
		}
	}
	return usage{t}
}

// noArgs refuses words where a verb takes flags alone, and names the flag that the first word may
// be meant for.
func noArgs(cmd *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}
	try := cmd.CommandPath() + " --help"
	if flag := map[string]string{"undo": "--to", "bake": "--root", "bundle": "-o", "mirror": "-o"}[cmd.Name()]; flag != "" && (cmd.Name() != "undo" || words[0] == "all" || strings.ContainsAny(words[0], pattern.Digits)) {
		try = cmd.CommandPath() + " " + flag + " " + host.ShellWord(words[0])
	}
	return usage{&trouble.Error{What: fmt.Sprintf("cannot use %q: %s takes no words but flags", words[0], cmd.CommandPath()), Try: []string{try}}}
}

func unknown(cmd *cobra.Command, word string) error {
	var verbs []string
	for _, v := range cmd.Commands() {
		if !v.Hidden {
			verbs = append(verbs, v.Name())
		}
	}
	try := []string{cmd.CommandPath() + " --help"}
	if other, ok := others[word]; ok && !cmd.HasParent() {
		try = []string{trouble.Command(other)}
	} else if key, ok := stated[word]; ok && !cmd.HasParent() {
		try = []string{"write it into node.toml: " + key, trouble.Command("plan")}
	} else if like := nearest.Of(word, verbs); like != "" {
		try = []string{cmd.CommandPath() + " " + like}
	}
	return usage{&trouble.Error{What: fmt.Sprintf("cannot find the command %q of %s", word, cmd.CommandPath()), Try: try}}
}
