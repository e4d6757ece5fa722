// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

func newDoctor(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [CODE]",
		Short: "find what is broken on this machine, and name one fix",
		Args:  atMostOne("code"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return c.doctorCode(args[0])
			}
			return c.doctor(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&c.noCUDA, "no-cuda", false, "do not start CUDA on the GPUs")
	cmd.Flags().DurationVar(&c.wait, "wait", doctor.Wait, "how long to wait, in all, for answers of the driver, daemons, programs and disks")
	return cmd
}

// doctor prints a report. A machine that has lost all its GPUs has a root cause. For a machine
// without GPUs and without a root cause, doctor prints one line.
func (c *common) doctor(ctx context.Context) error {
	all := view.DeadlineIn(c.wait)
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	if !h.Live() {
		return usage{errors.New("cannot examine the files of another machine: doctor asks the kernel and the driver that run")}
	}
	gpus, err := new(facts.Cache).GPUs(h)
	if err != nil {
		return &trouble.Unknown{Err: err}
	}
	hasGPU := slices.ContainsFunc(gpus, facts.PCI.Display)

	v := view.WithinAll(h, all)
	report, err := c.examine(ctx, h, v, all)
	if err != nil {
		return err
	}

	if !hasGPU && len(report.Causes) == 0 && c.output != "json" {
		c.answer("No NVIDIA GPU on the PCI bus: nothing to examine here.")
		return nil
	}
	c.offerRepairs(ctx, v, report.Causes)

	if err := show(c, report, c.doctorText); err != nil {
		return err
	}
	switch report.State {
	case doctor.Faulty:
		return exit(exitPending)
	case doctor.Unknown:
		return exit(exitAgain)
	}

	return nil
}

// examine examines a machine, with its node.toml if it has one. If that cannot be used, it goes by
// the spec that a boot would apply; without one it reports what node.toml asks for as not checked.
func (c *common) examine(
	ctx context.Context, h host.Host, v host.View, all view.Deadline,
) (doctor.Report, error) {
	s, _, err := c.bootSpec(view.WithinAll(h, all)) // a bundle does not record the kept spec
	if err != nil && len(c.files) > 0 {
		return doctor.Report{}, err
	}

	ownSpec, unread := c.ownSpec(err)
	own := doctor.Own{
		Version: version(),
		Spec:    ownSpec,
		Units:   stages.OwnServices(),
		NoCUDA:  c.noCUDA,
		Wait:    cmp.Or(c.wait, doctor.Wait),
		Left:    all.Left,
		Kubelet: stages.KubeletUnit,
		Gate:    stages.GateDropIn,
	}
	if c.root {
		own.Shut = func(ctx context.Context) string { return c.whyShut(ctx, h, v) }
		own.AtWork = func() bool { return agent.AtWork(h) }
	}
	r := doctor.Examine(ctx, v, s, own)
	if unread != "" {
		r.Unread = append(r.Unread, doctor.Unread{
			What: "what node.toml asks for",
			Why:  unread,
		})
		r.Judge()
	}

	return r, nil
}

// ownSpec says what is wrong with the machine's own spec, after bootSpec has ended with this error,
// and why what it asks for is not known. A file that only root may read is not a fault.
func (c *common) ownSpec(err error) (s doctor.OwnSpec, unread string) {
	onlyRoot := func(err error) bool { return !c.root && errors.Is(err, fs.ErrPermission) }
	var none *noSpecAtBoot
	switch {
	case errors.As(err, &none) && onlyRoot(none.own):
		return s, "only root may read it"
	case errors.As(err, &none):
		s = unusableSpec(none.own)
		if onlyRoot(none.last) {
			s.Instead = "a spec that only root may read"
		}
		unread = s.Fault
	case c.broken != nil:
		s = unusableSpec(c.broken.why)
		s.Instead = c.broken.instead()
	}

	_, s.Removed, _ = c.specRemoved(err)
	return s, unread
}

func unusableSpec(why error) doctor.OwnSpec {
	return doctor.OwnSpec{
		Fault: firstFault(why),
		Fix:   strings.Join(append(fixSpec(why), "then apply"), "; "),
	}
}

// whyShut says why the gate is closed; "" if it is open, or while a run is in progress: most runs
// open it.
func (c *common) whyShut(ctx context.Context, h host.Host, v host.View) string {
	if agent.AtWork(h) {
		return ""
	}

	asking := &common{
		env:     c.env,
		rootDir: c.rootDir,
		output:  "json",
		pulse:   new(pulse),
	}
	asking.stdout = io.Discard
	asking.stderr = io.Discard

	err := asking.closedGate(ctx, func(host.View) host.View { return v })
	var t *trouble.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &t):
		return strings.Join(append([]string{t.What}, t.Because...), "; ")
	}

	return trouble.OneLine(err.Error())
}

// offerRepairs names for each root cause the repair that fixes it, in place of other commands. It
// plans each repair, which touches nothing. For a repair that would refuse it names the reason
// instead.
func (c *common) offerRepairs(ctx context.Context, v host.View, causes []doctor.Cause) {
	s, _, err := c.bootSpec(v)
	if err != nil {
		s = spec.Spec{} // the report says why it cannot be read
	}

	for i := range causes {
		cause := &causes[i]
		r, found := repairOf(cause.Code)
		if !found {
			continue
		}
		if r.Section != "" && s.Has(r.Section) {
			cause.NoRepair = "node.toml has [" + r.Section + "], so apply is the fix"
			cause.Commands = []string{c.command("apply")}
			continue
		}

		if cause.NoRepair == "" {
			cause.NoRepair = refusal(ctx, v, s, r)
		}
		if cause.NoRepair == "" {
			cause.Commands = []string{c.typed("repair " + cause.Code)}
		}
	}
}

// refusal says why a repair would do nothing on this machine; "" if it would.
func refusal(ctx context.Context, v host.View, s spec.Spec, r stages.Repair) string {
	e := &converge.Engine{Version: version(), Clients: devices.Clients}
	_, e.ThingOf = stages.Run(new(node.Session), nil)
	repairing(e, s, r)

	p, err := e.Plan(ctx, v)
	switch {
	case err != nil:
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	case len(p.Cannot()) > 0:
		return p.Cannot()[0].Cannot
	case p.Unknown > 0:
		unseen := p.Unseen()[0]
		return "cannot read the state of " + unseen.String() + ": " + unseen.Unknown
	case p.Now() == 0:
		return "gpuadm finds nothing here that it could change about it"
	}

	return ""
}

// doctorText prints a report: first the root causes, each with the command to type.
func (c *common) doctorText(r doctor.Report) {
	w := c.stdout
	for _, cause := range r.Causes {
		c.causeText(cause)
	}
	for _, n := range r.Notes {
		printf(w, "Note: %s.\n", n.What)
	}
	for _, u := range r.Unread {
		printf(w, "Not checked: %s: %s\n", u.What, u.Why)
	}

	printf(w, "%s, %s.\n", doctorEnd(r), trouble.Count(r.Checks, "check"))
}

// doctorEnd says what was found, and whether all could be looked at.
func doctorEnd(r doctor.Report) string {
	parts := trouble.Count(len(r.Unread), "part")
	switch {
	case r.State == doctor.Unknown:
		return "No fault found in what could be looked at; " + parts + " could not"
	case r.State == doctor.Faulty && len(r.Unread) > 0:
		return trouble.Count(len(r.Causes), "root cause") + "; " + parts + " could not be looked at"
	case r.State == doctor.Faulty:
		return trouble.Count(len(r.Causes), "root cause")
	}

	return "No fault found"
}

// alike are findings with the same sentence.
type alike struct {
	sentence string // with a mark in the place of the object
	objects  []string
}

// objectMark replaces the object in a sentence.
const objectMark = "\x00"

// together says each sentence once. What is the same of several GPUs or switches is one sentence.
func together(found []doctor.Found) (sentences []string) {
	var groups []alike
	for _, f := range found {
		sentence := f.What
		if f.Object != "" {
			sentence = strings.ReplaceAll(sentence, f.Object, objectMark)
		}
		if f.Code != "" {
			sentence = f.Code + "  " + sentence
		}

		isSame := func(g alike) bool { return g.sentence == sentence }
		i := slices.IndexFunc(groups, isSame)
		if i < 0 {
			i = len(groups)
			groups = append(groups, alike{sentence: sentence})
		}
		groups[i].objects = append(groups[i].objects, f.Object)
	}

	for _, g := range groups {
		for _, sentence := range g.sentences() {
			if !slices.Contains(sentences, sentence) {
				sentences = append(sentences, sentence)
			}
		}
	}
	return sentences
}

// sentences returns one sentence with the number and the addresses of GPUs or switches, and of any
// other objects a sentence each.
func (a alike) sentences() (all []string) {
	n := len(a.objects)
	for _, kind := range []string{"GPU", "NVSwitch"} {
		one := kind + " " + objectMark
		if n > 1 && strings.Contains(a.sentence, one) {
			text := strings.Replace(a.sentence, one, "each of "+trouble.Count(n, kind), 1)
			text += ": " + strings.Join(a.objects, ", ")
			return []string{strings.ReplaceAll(text, objectMark, "its address")}
		}
	}

	for _, object := range a.objects {
		all = append(all, strings.ReplaceAll(a.sentence, objectMark, object))
	}
	return all
}

// withoutCodes are faults of the one code that stands above them.
func withoutCodes(found []doctor.Found) []doctor.Found {
	found = slices.Clone(found)
	for i := range found {
		found[i].Code = ""
	}
	return found
}

// causeText prints one root cause.
func (c *common) causeText(cause doctor.Cause) {
	w := c.stdout
	printf(w, "%s %s  %s\n", c.colour(w, "!"), cause.Code, cause.Title)
	for _, what := range together(withoutCodes(cause.Found)) {
		printf(w, "    %s\n", what)
	}
	printf(w, "    %s.\n", cause.Meaning)

	explains := together(cause.Explains)
	if more := len(explains) - 1; more > 0 && !c.verbose {
		explains = []string{explains[0], fmt.Sprintf("and %d more, which -v lists", more)}
	}
	row := func(word string, lines ...string) { rows(w, 4, 11, word, lines...) }
	row("explains", explains...)
	row("fix", cause.Fix)
	row("interrupts", cause.Interrupts)
	if cause.NoRepair != "" {
		row("no repair", cause.NoRepair)
	}
	row("type", cause.Commands...)
	if c.verbose {
		row("source", cause.Sources...)
	}
	printf(w, "\n")
}
