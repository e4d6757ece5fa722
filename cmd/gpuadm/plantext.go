// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// planText prints a plan: a line for each stage, or its changes if details are asked for; the
// notes; the changes that cannot be made; and the next command.
func (c *common) planText(p converge.Plan) {
	w := c.stdout
	if !c.quiet {
		printf(w, "%s   spec"+glue+"%s\n\n", p.Host.Summary, p.Host.Spec)
	}
	short := c.planStages(p)
	printedStages := len(p.Stages) > 0 && !c.quiet && p.Converged > 0
	if len(p.Changes) > 0 || printedStages {
		printf(w, "\n")
	}

	c.remarks(p)
	c.laterText(p.Later)
	if c.refusals(p, short) {
		printf(w, "\n")
	}
	printf(w, "%s\n", planEnd(p))
	cannot := len(p.Cannot())
	switch {
	case p.Reboot != "":
		printf(w, "A run of this boot has asked for a reboot, for %s: sudo reboot, then: %s\n", p.Reboot, c.typed("apply"))
	case p.State == converge.EndsReboot:
		printf(w, "%s\n", c.rebootNeeded(p.NeedsReboot()))
	case cannot == 0 && p.Now() > 0:
		printf(w, "Nothing was touched. To apply: %s%s\n", c.typed("apply"), allowing(p.Changes))
	}

	if short {
		printf(w, "Details: %s\n", c.typed(cmp.Or(c.planVerb, "plan")+" -v"))
	}
}

// laterText lists the values of the spec that only a later moment can judge.
func (c *common) laterText(all []converge.Later) {
	if len(all) == 0 || c.quiet {
		return
	}

	printf(c.stdout, "Decided later:\n")
	for _, l := range all {
		place := ""
		if l.At != "" {
			place = " (" + l.At + ")"
		}
		printf(c.stdout, "  %s %s%s: %s\n", l.Key, l.Value, place, l.Until)
	}

	printf(c.stdout, "\n")
}

// planStages prints the stages of a plan, several that are converged in one line. short says that
// it shows a stage's changes in one line.
func (c *common) planStages(p converge.Plan) (short bool) {
	w := c.stdout
	var converged []string
	flush := func() {
		if len(converged) > 0 && !c.quiet {
			printf(w, "  %s =\n", strings.Join(converged, ", "))
		}
		converged = nil
	}

	for _, st := range p.Stages {
		if st.Changes == 0 {
			if st.Converged > 0 || c.verbose {
				converged = append(converged, st.Name)
			}
			continue
		}

		flush()
		changes := of(p.Changes, st.Name)
		if !c.detailed(st.Name) {
			short = true
			c.stageLine(w, st.Name, changes)
			c.drawings(w, changes)
			continue
		}

		name := st.Name
		for _, ch := range joined(changes) {
			c.changeText(w, name, ch)
			name = ""
		}
	}

	flush()
	return short
}

// drawings prints what a stage's changes draw, each drawing once: eight GPUs mostly have one.
func (c *common) drawings(w io.Writer, changes []converge.Line) {
	if c.quiet {
		return
	}
	hasNone := func(ch converge.Line) bool { return ch.Drawing == "" }
	drawn := slices.DeleteFunc(slices.Clone(changes), hasNone)
	all, by := grouped(drawn, func(ch converge.Line) string { return ch.Drawing })
	for _, drawing := range all {
		if len(all) > 1 {
			printf(w, "%15s%s\n", "", several(by[drawing]))
		}
		c.signedLines(w, drawing)
	}
}

// detailed says whether a stage's changes are shown one by one: with -v, or if the operator names
// the stage.
func (c *common) detailed(stage string) bool {
	return c.verbose || slices.Contains(c.shown, stage)
}

// stageLine prints a stage's changes in a line: those that cannot be made, else those to be made,
// then those that are deferred.
func (c *common) stageLine(w io.Writer, stage string, changes []converge.Line) {
	refused, unseen, ready, later := sorted(changes)
	var first []converge.Line
	var text string
	switch {
	case len(refused) > 0:
		first = refused
		text = several(refused)
		if n := len(changes) - len(refused); n > 0 {
			text += fmt.Sprintf(", and %s more", trouble.Count(n, "change"))
		}
	case len(unseen) > 0:
		first = unseen
		text = "cannot read the state of " + several(unseen)
		if n := len(changes) - len(unseen); n > 0 {
			text += fmt.Sprintf("; %s more", trouble.Count(n, "change"))
		}
	case len(ready) > 0:
		first = ready
		text = several(ready)
		if len(later) > 0 {
			text += "; " + deferred(later)
		}
	default:
		first = later
		text = deferred(later)
	}

	mark := sign(first[0])
	ofOtherKind := func(ch converge.Line) bool { return sign(ch) != mark }
	if slices.ContainsFunc(first, ofOtherKind) {
		mark = "~"
	}
	printf(w, "  %-10s %s %s\n", stage, c.colour(w, mark), text)
}

// sorted returns the changes that cannot be made, those to things whose state is unknown, those
// that are made now, and those that are deferred.
func sorted(changes []converge.Line) (refused, unseen, ready, later []converge.Line) {
	for _, ch := range changes {
		switch {
		case ch.Cannot != "":
			refused = append(refused, ch)
		case ch.Unknown != "":
			unseen = append(unseen, ch)
		case ch.Deferred != "":
			later = append(later, ch)
		default:
			ready = append(ready, ch)
		}
	}
	return refused, unseen, ready, later
}

// refusals repeats at the end the changes that cannot be made and the reasons, unless the plan
// shows nothing else.
func (c *common) refusals(p converge.Plan, short bool) bool {
	all := p.Cannot()
	if len(all) == 0 || !short && len(all) == len(p.Changes) {
		return false
	}
	for _, ch := range joined(all) {
		c.changeLine(c.stdout, ch.Stage, ch)
	}
	return true
}

// joined has one change in the place of all that cannot be made for one reason, with their names:
// several stages may have the same reason.
func joined(changes []converge.Line) (list []converge.Line) {
	at := map[string]int{}
	for _, ch := range changes {
		reason := fmt.Sprint(ch.Cannot, ch.Because, ch.Try)
		i, seen := at[reason]
		if seen && ch.Cannot != "" {
			list[i].Name += ", " + ch.String()
			continue
		}
		at[reason] = len(list)
		list = append(list, ch)
	}

	return list
}

// of returns a stage's changes.
func of(changes []converge.Line, stage string) []converge.Line {
	return slices.DeleteFunc(slices.Clone(changes), func(ch converge.Line) bool {
		return ch.Stage != stage
	})
}

// planEnd says how many changes a plan has, and what they interrupt.
func planEnd(p converge.Plan) string {
	if p.Unknown == 0 {
		return changesEnd(p)
	}
	end := unknownEnd(p)
	if p.Now() > 0 {
		end += " " + changesEnd(p)
	}
	return end
}

// unknownEnd is the last sentence of a command that could not look at all that the spec wants.
func unknownEnd(p converge.Plan) string {
	const unknown = "Not known whether this machine is converged: the state of %s could not be read (x above)."
	return fmt.Sprintf(unknown, trouble.Count(p.Unknown, "thing"))
}

// changesEnd is planEnd for what could be looked at.
func changesEnd(p converge.Plan) string {
	cannot := len(p.Cannot())
	now := p.Now() - cannot
	switch {
	case cannot > 0:
		return fmt.Sprintf("%s cannot be made, so apply would touch nothing. Nothing was touched.", trouble.Count(cannot, "change"))
	case now == 0 && p.Deferred == 0:
		return "Nothing to do."
	case now == 0:
		return fmt.Sprintf("Nothing to do now; %s.", deferred(p.Changes))
	}

	stages := map[string]bool{}
	for _, ch := range p.Changes {
		if ch.Deferred == "" && ch.Unknown == "" {
			stages[ch.Stage] = true
		}
	}

	s := fmt.Sprintf("%s in %s", trouble.Count(now, "change"), trouble.Count(len(stages), "stage"))
	if p.Deferred > 0 {
		s += "; " + deferred(p.Changes)
	}
	return s + "." + interrupts(p.Changes)
}

// deferred says which changes are deferred, and until when.
func deferred(changes []converge.Line) string {
	var sentences []string
	events, by := grouped(changes, func(ch converge.Line) string { return ch.Deferred })
	for _, event := range events {
		if event == "" {
			continue
		}
		verb := " is "
		if len(by[event]) > 1 {
			verb = " are "
		}
		sentences = append(sentences, several(by[event])+verb+until(event))
	}

	return strings.Join(sentences, "; ")
}

// grouped groups changes by key; order lists the keys as they first appear.
func grouped(
	changes []converge.Line, key func(converge.Line) string,
) (order []string, by map[string][]converge.Line) {
	by = map[string][]converge.Line{}
	for _, ch := range changes {
		k := key(ch)
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], ch)
	}

	return order, by
}

// ofNode counts the changes to the machine's Node object: "33 labels, taints and records of this
// node".
func ofNode(changes []converge.Line) string {
	nouns, _ := grouped(changes, func(ch converge.Line) string {
		return firstWord(ch.Name) + "s"
	})
	last := len(nouns) - 1
	list := nouns[last]
	if last > 0 {
		list = strings.Join(nouns[:last], ", ") + " and " + list
	}
	return fmt.Sprintf("%d %s of this node", len(changes), list)
}

// several names up to three changes of a kind, and counts more than three.
func several(changes []converge.Line) string {
	var names []string
	kinds, by := grouped(changes, func(ch converge.Line) string { return ch.Kind })
	for _, kind := range kinds {
		all := by[kind]
		switch {
		case len(all) > 3 && kind == "node":
			names = append(names, ofNode(all))
		case len(all) > 3:
			names = append(names, trouble.Count(len(all), kind))
		default:
			for _, ch := range all {
				names = append(names, strings.Replace(ch.String(), " ", glue, 1))
			}
		}
	}

	return strings.Join(names, ", ")
}

// interrupts says what the changes interrupt.
func interrupts(changes []converge.Line) string {
	var text strings.Builder
	for _, b := range []struct{ what, text string }{
		{"restart-runtime", " Restarts the container engine; running containers keep running."},
		{"restart-kubelet", " Restarts kubelet too: its unit requires the engine's."},
		{"stop-containers", " Stops the containers of Docker."},
		{"stop-clients", " Stops the processes that hold a GPU."},
		{"lose-partitions", " Destroys MIG partitions that node.toml does not ask for."},
		{"reset-gpu", " Resets a GPU."},
		{"reboot", " Reboots."},
	} {
		if len(breaking(changes, b.what)) > 0 {
			text.WriteString(b.text)
		}
	}

	held := heldByOthers(changes)
	if len(held) > 0 {
		text.WriteString(" Changes what another tool holds: " + several(held) + ".")
	}
	services := paused(converge.ChangesOf(changes))
	if len(services) > 0 {
		text.WriteString(" Pauses and resumes " + strings.Join(services, ", ") + ".")
	}
	return text.String()
}

// breaking are the changes that are made now and have a break.
func breaking(changes []converge.Line, what string) []converge.Line {
	return slices.DeleteFunc(slices.Clone(changes), func(ch converge.Line) bool {
		return ch.Deferred != "" || ch.Unknown != "" || !slices.Contains(ch.Breaks, what)
	})
}

// heldByOthers are the changes that gpuadm does not make unless an operator allows them.
func heldByOthers(changes []converge.Line) []converge.Line {
	return breaking(changes, "change-held")
}

// allowing is what a command needs to make changes to what another tool holds; "" if no change
// needs it.
func allowing(changes []converge.Line) string {
	if len(heldByOthers(changes)) == 0 {
		return ""
	}
	return " --allow change-held"
}

// paused returns the services that the changes pause and resume.
func paused(changes []converge.Change) (services []string) {
	for _, ch := range changes {
		for _, name := range ch.Clients["pause-services"] {
			if !slices.Contains(services, name) {
				services = append(services, name)
			}
		}
	}
	return services
}
