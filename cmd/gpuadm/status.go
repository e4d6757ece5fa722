// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

type statusFlags struct {
	since string
	diff  bool
}

func newStatus(c *common) *cobra.Command {
	var flags statusFlags
	cmd := &cobra.Command{
		Use:               "status [STAGE…]",
		Short:             "show what is converged, what is not, since when",
		ValidArgsFunction: stageNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.status(cmd.Context(), args, flags)
		},
	}
	cmd.Flags().StringVar(&flags.since, "since", "", "list the changes of all runs since `TIME` (yesterday, 2026-11-20, \"2026-11-20 06:00\", 36h, 7d) or since a run")
	cmd.Flags().BoolVar(&flags.diff, "diff", false, "show what was changed outside gpuadm, line by line")
	return cmd
}

// status prints what is converged, and what is not.
func (c *common) status(ctx context.Context, only []string, flags statusFlags) error {
	ready := c.engineOf
	if flags.diff {
		ready = c.engineOfFiles
	}
	e, h, err := ready(ctx, only)
	if none := new(noSpecAtBoot); errors.As(err, &none) {
		return none.own
	}
	if err != nil {
		return c.withoutSpec(ctx, err)
	}

	nothing := func(p converge.Plan) any {
		return converge.Status{
			Plan: p,
			Runs: []converge.Run{},
			Made: []converge.Mark{},
		}
	}

	none, err := c.noGPU(ctx, e, h, nothing)
	if err != nil || none && !flags.diff {
		return err
	}

	s, err := c.lookAtAll(ctx, e, h)
	if err != nil {
		return err
	}

	var from time.Time
	if flags.since != "" {
		from, err = sinceWhen(flags.since, s.Runs, h.Now())
		if err != nil {
			return err
		}
		dropBefore(&s, from)
	}

	err = show(c, s, func(s converge.Status) { c.statusText(s, from, flags.diff) })
	if err != nil {
		return err
	}
	if c.broken != nil {
		return c.broken.why
	}
	return exitOfStatus(s, flags)
}

// lookAtAll is the engine's status, with what only the command knows: the taint of a failure, a
// spec that stands in for a broken one, files that gpuadm does not read, and a run at work.
func (c *common) lookAtAll(ctx context.Context, e *converge.Engine, h host.Host) (converge.Status, error) {
	s, err := e.Status(ctx, view.Within(h))
	if err != nil {
		return s, err
	}

	held, err := node.KeepsPodsOff(ctx, h, e.Spec)
	if err != nil {
		return s, err
	}
	if held != "" {
		s.Notes = append(s.Notes, held)
	}
	s.Notes = append(s.Notes, c.unread(h)...)

	if c.broken != nil {
		s.Instead = c.broken.instead()
	}
	s.InProgress = s.Unfinished != "" && agent.AtWork(h)
	if c.verbose {
		c.addBoot(ctx, h, &s)
	}
	return s, nil
}

// exitOfStatus is how status ends: by the state, and with --diff by drift too, and by what could not
// be compared.
func exitOfStatus(s converge.Status, flags statusFlags) error {
	ends := exitOf(s.State)
	if ends != nil || !flags.diff {
		return ends
	}

	isUnseen := func(m converge.Mark) bool { return m.Unseen != "" }
	hasDrift := func(m converge.Mark) bool { return m.Drift != nil }
	switch {
	case slices.ContainsFunc(s.Made, isUnseen):
		return exit(exitAgain)
	case slices.ContainsFunc(s.Made, hasDrift):
		return exit(exitPending)
	}
	return nil
}

// dropBefore drops the runs before a time, and what they made. What has drifted stays, and what
// could not be read.
func dropBefore(s *converge.Status, from time.Time) {
	isOldRun := func(r converge.Run) bool { return r.Time.Before(from) }
	isAsLeft := func(m converge.Mark) bool { return m.Drift == nil && m.Unseen == "" }
	isOldMark := func(m converge.Mark) bool { return m.Left.Before(from) && isAsLeft(m) }
	s.Runs = slices.DeleteFunc(s.Runs, isOldRun)
	s.Made = slices.DeleteFunc(s.Made, isOldMark)
}

func (c *common) engineOf(ctx context.Context, only []string) (*converge.Engine, host.Host, error) {
	return c.engineAtBoot(ctx, only, nil)
}

// engineOfFiles is engine for status --diff, which needs no spec, since it compares with the
// journal.
func (c *common) engineOfFiles(ctx context.Context, only []string) (*converge.Engine, host.Host, error) {
	e, h, err := c.engineAtBoot(ctx, only, nil)
	if !errors.Is(err, errNoSpec) || len(c.files) > 0 {
		return e, h, err
	}

	h, err = c.open(c.rootDir, nil)
	if err != nil {
		return nil, nil, err
	}
	e, _ = c.newEngine(h)
	return e, h, nil
}

// sinceWhen reads a time, a duration before now, or a run of the journal.
func sinceWhen(text string, runs []converge.Run, now time.Time) (time.Time, error) {
	for _, r := range runs {
		if r.ID == text {
			return r.Time, nil
		}
	}

	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch text {
	case "today":
		return today, nil
	case "yesterday":
		return today.AddDate(0, 0, -1), nil
	}

	if days, err := strconv.Atoi(strings.TrimSuffix(text, "d")); err == nil && strings.HasSuffix(text, "d") {
		return now.AddDate(0, 0, -max(days, -days)), nil
	}
	for _, form := range []string{time.RFC3339, time.DateTime, day, time.DateOnly} {
		at, err := time.ParseInLocation(form, text, now.Location())
		if err == nil {
			return at, nil
		}
	}

	ago, err := time.ParseDuration(text)
	if err == nil {
		return now.Add(-ago.Abs()), nil
	}
	return time.Time{}, usage{&trouble.Error{
		What: fmt.Sprintf("cannot list the changes since %q: it is neither a time nor a run that "+trouble.Command("status")+" lists", text),
		Try:  []string{"write yesterday, 2026-11-20, \"2026-11-20 06:00\", 36h or 7d"},
	}}
}

const day = "2006-01-02 15:04"

// statusText prints the state and the last five runs; with from, all runs since then and their
// changes.
func (c *common) statusText(s converge.Status, from time.Time, diff bool) {
	w := c.stdout
	printf(w, "%s   spec"+glue+"%s\n\n", s.Host.Summary, s.Host.Spec)
	if s.Instead != "" {
		printf(w, "node.toml cannot be used. This is the state by %s.\n\n", s.Instead)
	}
	for _, st := range s.Stages {
		changes := of(s.Changes, st.Name)
		switch {
		case len(changes) > 0:
			c.stageLine(w, st.Name, changes)
		case st.Converged > 0:
			printf(w, "  %-10s = converged%s\n", st.Name, since(s, st.Name))
		}
	}

	if len(s.Cannot()) > 0 {
		printf(w, "\n")
	}
	c.refusals(s.Plan, true)
	c.notAsLeft(s, diff)

	c.runsText(s.Runs, from)
	c.bootText(s.Boot)
	if s.Torn > 0 {
		printf(w, "\nA power cut has torn line %d of the journal, its last. Nothing was touched under it; the next apply or undo passes over it.\n", s.Torn)
	}
	if s.Damage != "" {
		printf(w, "\nThe journal: %s\n", s.Damage)
	}
	printf(w, "\n")

	c.remarks(s.Plan)
	if s.InProgress {
		printf(w, "Run %s is in progress.\n", s.Unfinished)
		return
	}
	printf(w, "%s\n", c.statusEnd(s))
}

// runsText prints the last five runs; with from, all runs and their changes.
func (c *common) runsText(runs []converge.Run, from time.Time) {
	if len(runs) == 0 {
		return
	}
	w := c.stdout
	withChanges := !from.IsZero()
	if !withChanges {
		runs = runs[max(0, len(runs)-5):]
	}

	printf(w, "\nruns\n")
	for _, r := range runs {
		printf(w, "  %-20s %s, %s\n", r.ID, trouble.Count(len(r.Makes), "change"), outcome(r))
		if c.verbose && len(r.Took) > 0 {
			printf(w, "    took  %s\n", r.Took)
		}
		if !withChanges {
			continue
		}
		for _, ch := range r.Makes {
			printf(w, "    %-10s %s %s\n", ch.Stage, c.colour(w, sign(converge.Line{Change: ch})), ch)
		}
	}
}

// remarks prints what changes wait for, and the notes.
func (c *common) remarks(p converge.Plan) {
	waitingText(c.stdout, p.Changes)
	unknownText(c.stdout, p)
	c.notes(p.Notes)
	if len(p.Notes) > 0 {
		printf(c.stdout, "\n")
	}
}

// waitingText prints each event that changes wait for once, and what to do if it does not happen.
func waitingText(w io.Writer, changes []converge.Line) {
	printed := map[string]bool{}
	for _, ch := range changes {
		if ch.Waits == "" || printed[ch.Waits] {
			continue
		}
		printed[ch.Waits] = true
		printf(w, "%s\n", ch.Waits)
		reasons(w, ch.Because, nil, ch.Try)
		printf(w, "\n")
	}
}

// unknownText prints each reason why states are unknown once, with the things and what to do.
func unknownText(w io.Writer, p converge.Plan) {
	causes, by := grouped(p.Unseen(), func(ch converge.Line) string { return ch.Unknown })
	for _, cause := range causes {
		same := by[cause]
		printf(w, "Cannot read the state of %s: %s\n", several(same), cause)
		reasons(w, same[0].Because, nil, same[0].Try)
		printf(w, "\n")
	}
}

// notAsLeft prints gpuadm's things that are released, or that have changed since.
func (c *common) notAsLeft(s converge.Status, diff bool) {
	w := c.stdout
	unseen := map[string][]string{} // by reason
	hasDrift := false
	for _, m := range s.Made {
		name := m.Kind + " " + m.Name
		if m.Unseen != "" {
			unseen[m.Unseen] = append(unseen[m.Unseen], name)
		}
		hasDrift = hasDrift || m.Drift != nil
		if diff && m.Drift != nil {
			printf(w, "\n")
			c.changeText(w, m.Stage, *m.Drift)
		}

		switch {
		case m.Released: // below, by stage
		case m.Changed:
			printf(w, "\n%s was changed outside gpuadm since %s.\n", name, m.Since.Format(day))
		case m.Reverted:
			printf(w, "\n%s has the state from before gpuadm changed it on %s.\n", name, m.Since.Format(day))
		}
	}

	if diff && !hasDrift && len(unseen) == 0 {
		printf(w, "\nNothing was changed outside gpuadm since its last run.\n")
	}
	for _, why := range slices.Sorted(maps.Keys(unseen)) {
		names := strings.Join(trouble.Few(unseen[why], 3), ", ")
		printf(w, "\nCannot read the state of %s: %s.\n", names, why)
	}
	c.released(s)
}

// released prints how many things of each stage gpuadm no longer manages.
func (c *common) released(s converge.Status) {
	things := map[string]int{}      // by stage
	firstRun := map[string]string{} // that made one of them, by stage
	for _, m := range s.Made {
		if !m.Released {
			continue
		}
		things[m.Stage]++
		if firstRun[m.Stage] == "" || m.Run < firstRun[m.Stage] {
			firstRun[m.Stage] = m.Run
		}
	}

	for _, stage := range slices.Sorted(maps.Keys(things)) {
		count := trouble.Count(things[stage], "thing")
		undo := c.typed("undo --to " + firstRun[stage])
		printf(c.stdout, "\n%s: the spec has no section for it any more; gpuadm no longer manages %s of it. To undo: %s\n", stage, count, undo)
	}
}

// since returns when the stage's first thing got its state.
func since(s converge.Status, stage string) string {
	for _, m := range s.Made {
		if m.Stage == stage {
			return " since " + m.Since.Format(day)
		}
	}
	return ""
}

func outcome(r converge.Run) string {
	switch {
	case r.Undone:
		return "undone"
	case len(r.Undoes) > 0 && r.Result == "ok":
		return "undid " + strings.Join(r.Undoes, ", ")
	case r.Result == "":
		return "unfinished"
	case r.Repair != "":
		return "repair " + r.Repair + ", " + r.Result
	}
	return r.Result
}

// statusEnd is the last sentence of a status.
func (c *common) statusEnd(s converge.Status) string {
	hasConverged := func(st converge.StagePlan) bool { return st.Converged > 0 }
	pending := trouble.Count(s.Now(), "change")
	switch {
	case len(s.Stages) == 0:
		return "This machine has no node.toml, so there is no plan of what apply would change."
	case s.Undoing:
		return fmt.Sprintf("Run %s, an undo, was cut short. To continue: %s", s.Unfinished, c.typed("undo"))
	case s.Repairing != "":
		command := c.typed("repair " + s.Repairing)
		return fmt.Sprintf("Run %s, a repair, was cut short. To continue: %s", s.Unfinished, command)
	case s.Unfinished != "" && s.Reboot != "":
		return fmt.Sprintf("Run %s waits for a reboot, for %s: sudo reboot, then: %s", s.Unfinished, s.Reboot, c.typed("apply"))
	case s.Unfinished != "":
		return fmt.Sprintf("Run %s was cut short. To continue: %s", s.Unfinished, c.typed("apply"))
	case len(s.Cannot()) > 0:
		return "Cannot converge: see ! above."
	case s.Unknown > 0:
		return unknownEnd(s.Plan)
	case s.Held != "" && s.Now() > 0:
		return fmt.Sprintf("Held since the undo of run %s; %s pending. To continue: %s", s.Held, pending, c.typed("apply"))
	case s.Instead != "":
		return fmt.Sprintf("%s pending by that spec. node.toml cannot be used: fix it, then: %s", pending, c.typed("apply"))
	case s.Now() > 0:
		return fmt.Sprintf("%s pending. To see them: %s", pending, c.typed("plan"))
	case s.State == converge.EndsReboot:
		return c.rebootNeeded(s.NeedsReboot())
	case s.State == converge.EndsWaiting:
		return "Not yet converged: see above what it waits for."
	case s.State == converge.EndsDeferred:
		return fmt.Sprintf("Converged so far; %s.", deferred(s.Changes))
	case slices.ContainsFunc(s.Stages, hasConverged):
		return "Converged."
	}

	return "Nothing to do: the spec has no section with a stage."
}
