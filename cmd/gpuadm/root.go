// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// common has the flags of every verb.
type common struct {
	env
	files   []string
	rootDir string
	output  string
	quiet   bool
	verbose bool
	noColor bool

	run     *agent.Run    // the engine, and its reports to the cluster
	pulse   *pulse        // of the voice: shows the programs at work
	silence *silence      // says that a verb works that prints nothing
	booting bool          // the boot unit has started gpuadm
	bakes   bool          // the verb is bake
	repairs bool          // the apply is a repair, and chosen is its code
	noCUDA  bool          // doctor is not to start CUDA
	wait    time.Duration // how long doctor waits for an answer
	broken  *unusable     // the machine's own spec, and what this process goes by instead; nil: it is used

	verb     string   // with the program's name, as it was typed
	shown    []string // stages whose details a plan shows
	planVerb string   // the verb that shows a plan, if it is not plan
	chosen   []string // stages and flags that select what to apply, for printed commands
}

// inOrder makes the help list the verbs in the order of their use.
var inOrder = sync.OnceFunc(func() { cobra.EnableCommandSorting = false })

// newRoot returns the root command with all verbs.
func newRoot(e env) *cobra.Command {
	c := &common{
		env:     e,
		pulse:   new(pulse),
		silence: &silence{to: e.stderr, doing: looksHere},
	}
	c.stdout = c.screen(e.stdout)
	c.stderr = c.screen(e.stderr)
	root := &cobra.Command{
		Use:               "gpuadm",
		Short:             "turn a machine with NVIDIA GPUs into a Kubernetes node",
		Version:           version(),
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
	c.commonFlags(root)
	root.Flags().Bool("version", false, "print the version of gpuadm")

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

	root.SetHelpFunc(c.help(root.HelpFunc()))
	strictHelp(root)
	root.CompletionOptions.HiddenDefaultCmd = true
	strictCompletion(root)
	usageErrors(root)
	c.endSilence(root)
	return root
}

func (c *common) commonFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArrayVarP(&c.files, "file", "f", nil, "read the spec from `FILE` (- is stdin) in place of /etc/gpuadm; repeatable, later wins by key")
	f.StringVar(&c.rootDir, "root", "/", "work on the files of a machine in `DIR` (an image, a mounted disk); nothing runs there")
	f.StringVarP(&c.output, "output", "o", "text", "`FORM` of the answer: text or json")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "print only the answer and errors")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "also print details, and what is converged already")
	f.BoolVar(&c.noColor, "no-color", false, "use no colour; NO_COLOR does the same")

	root.MarkPersistentFlagDirname("root")
	forms := cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)
	root.RegisterFlagCompletionFunc("output", forms)
}

// help prints a verb's help with its page, folded to the terminal's width.
func (c *common) help(
	print func(*cobra.Command, []string),
) func(cmd *cobra.Command, args []string) {
	return func(cmd *cobra.Command, args []string) {
		describe(cmd)
		cmd.Long = sentence().ReplaceAllString(cmd.Long, "$1 ")
		var text strings.Builder
		cmd.SetOut(&text)
		print(cmd, args)
		cmd.SetOut(nil)

		width := c.width(c.stdout)
		if width == 0 || width > 100 {
			width = 80
		}
		printf(c.stdout, "%s", verbatim(fold(text.String(), width)))
	}
}

// sentence is the end of a line whose sentence continues in the next one.
var sentence = pattern.Of(`(?m)^(\S.*)\n\b`)

// A verbGroup is a part of the help.
type verbGroup struct {
	title string
	verbs []*cobra.Command
}

// verbs returns the verbs for operators, in the order and the groups of the help.
func (c *common) verbs() []verbGroup {
	return []verbGroup{
		{"Make a machine a node", []*cobra.Command{
			newInit(c), newValidate(c), newPlan(c), newApply(c), newStatus(c), newUndo(c),
		}},
		{"Find and fix faults", []*cobra.Command{
			newDoctor(c), newRepair(c),
		}},
		{"Images, sites without a network, other machines", []*cobra.Command{
			newBake(c), newMirror(c), newSSH(c),
		}},
		{"Look", []*cobra.Command{
			newConfig(c), newMIG(c), newOwners(c), newFacts(c), newManifest(c), newBundle(c),
		}},
		{"About gpuadm", []*cobra.Command{
			newVersion(c),
		}},
	}
}

// served returns the verbs that units, kubelet, apt and pods run. The help does not list them.
func (c *common) served() []*cobra.Command {
	return append(c.children(), newGate(c), newDaemonSet(c), newToken(c), newServeSSH(c))
}

// noVariable marks a flag that reuses a common flag's name for something else: its GPUADM_*
// variable sets only the common flag.
const noVariable = "gpuadm-no-variable"

// check refuses wrong values of the common flags, and reads missing flags from GPUADM_* variables.
func (c *common) check(cmd *cobra.Command) error {
	c.verb = cmd.CommandPath()
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if err == nil {
			err = emptyValue(cmd, f)
		}
		if err == nil {
			err = c.fromVariable(f, cmd.Flags())
		}
	})

	if err == nil && c.output != "text" && c.output != "json" {
		err = c.wrongForm(cmd)
	}
	return err
}

// wrongForm refuses a form of the answer. One with a dot or a slash is meant for a file.
func (c *common) wrongForm(cmd *cobra.Command) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot print as %q: -o takes text or json", c.output)}
	if strings.ContainsAny(c.output, "./") {
		command := cmd.CommandPath() + " … >" + host.ShellWord(c.output)
		t.Try = []string{"print, and let the shell write it: " + command}
	}
	return usage{t}
}

// fromVariable sets a flag that is not on the command line from its GPUADM_* variable.
func (c *common) fromVariable(f *pflag.Flag, all *pflag.FlagSet) error {
	_, own := f.Annotations[noVariable]
	if own || f.Changed || f.Name == "help" || f.Name == "version" {
		return nil
	}

	name := variable(f.Name)
	value := c.getenv(name)
	if value == "" {
		return nil
	}
	if err := all.Set(f.Name, value); err != nil {
		return wrongFlagValue(name, f, value)
	}
	return nil
}

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return "GPUADM_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// engine opens the machine, reads the spec and chooses the stages.
func (c *common) engine(ctx context.Context, only, skip []string) (*converge.Engine, host.Host, error) {
	read := func(h host.View) (spec.Spec, spec.Places, error) {
		return c.placedSpec(h, c.files)
	}
	return c.engineBy(ctx, only, skip, read)
}

// engineBy is engine with a reader of the spec.
func (c *common) engineBy(
	ctx context.Context, only, skip []string, read func(host.View) (spec.Spec, spec.Places, error),
) (*converge.Engine, host.Host, error) {
	c.chosen = slices.Clone(only)
	for _, name := range skip {
		c.chosen = append(c.chosen, "--skip", name)
	}
	h, err := c.open(c.rootDir, c.follower())
	if err != nil {
		return nil, nil, err
	}
	e, all := c.newEngine(h)
	sequence, err := c.choose(all, only, skip)
	if err != nil {
		return nil, nil, err
	}

	c.warnOfWriters()
	s, places, err := read(h)
	if err != nil {
		return nil, nil, err
	}
	if err := c.run.Follow(ctx, &s); err != nil {
		return nil, nil, err
	}

	e.Stages = sequence
	e.Before = all
	e.Spec = s
	e.Own = len(c.files)+len(only)+len(skip) == 0 && c.broken == nil
	e.Places = places
	e.Brief = c.quiet && c.output != "json"
	return e, h, nil
}

// newEngine returns an engine without stages for a machine, and the list of all stages.
func (c *common) newEngine(h host.Host) (*converge.Engine, []converge.Stage) {
	session := new(node.Session)
	memory := new(recall.Memory)
	all, thingOf := stages.Run(session, memory)
	e := &converge.Engine{
		Stages:  []converge.Stage{},
		ThingOf: thingOf,
		Clients: devices.Clients,
		Pods:    devices.Pods,
		Prune:   stages.Prune,
		Named:   stages.Named,
		Memory:  memory,
		Version: version(),
	}
	c.run = &agent.Run{Engine: e, Host: h, Node: session, Say: c.say}
	return e, all
}

// choose returns the stages asked for, in the sequence's order.
func (c *common) choose(all []converge.Stage, only, skip []string) ([]converge.Stage, error) {
	var chosen []converge.Stage
	known := map[string]bool{}
	for _, st := range all {
		known[st.Name] = true
		asked := len(only) == 0 || slices.Contains(only, st.Name)
		if asked && !slices.Contains(skip, st.Name) {
			chosen = append(chosen, st)
		}
	}

	for _, name := range slices.Concat(only, skip) {
		if known[name] {
			continue
		}
		return nil, usage{&trouble.Error{
			What: fmt.Sprintf("cannot find stage %q", name),
			Try:  []string{c.stageMeant(name, slices.Sorted(maps.Keys(known)))},
		}}
	}

	return chosen, nil
}

// stageMeant says which stage, or what else, a wrong name may mean.
func (c *common) stageMeant(name string, known []string) string {
	like := nearest.Of(strings.ToLower(name), known)
	list := strings.Fields(strings.ReplaceAll(name, ",", " "))
	isUnknown := func(stage string) bool { return !slices.Contains(known, stage) }
	areStages := len(list) > 1 && !slices.ContainsFunc(list, isUnknown)
	isIt := func(v *cobra.Command) bool { return v.IsAvailableCommand() && v.Name() == name }
	isVerb := slices.ContainsFunc(newRoot(c.env).Commands(), isIt)
	ofSection := stages.OfSection(name)
	switch {
	case strings.HasSuffix(name, ".toml"):
		return "a spec is named with -f"
	case len(ofSection) > 0:
		return "the stages of [" + name + "] are " + strings.Join(ofSection, ", ")
	case areStages:
		return c.verb + " " + strings.Join(list, " ")
	case name == "help":
		return c.verb + " --help"
	case isVerb:
		return "gpuadm " + name + "    is a command of its own"
	case like != "":
		return "the stage " + like
	}

	return "gpuadm help stages    lists them"
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
	signals := make(chan os.Signal, 1)
	stop := make(chan struct{})
	ready := make(chan struct{})
	signal.Ignore(syscall.SIGHUP)

	go func() {
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		close(ready)
		if _, ok := <-signals; ok {
			signal.Stop(signals)
			close(stop)
			say()
		}
	}()
	return stop, func() {
		<-ready
		signal.Stop(signals)
		close(signals)
	}
}
