// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// unusable says that the machine's own spec cannot be used, and what gpuadm goes by instead.
type unusable struct {
	why  error
	last converge.LastSpec // the zero LastSpec: by no spec, since an undo holds applies
}

// engineAtBoot is engine for what must not fail because of a mistake in node.toml: the boot unit,
// kubelet's gate, and what reports on them.
func (c *common) engineAtBoot(ctx context.Context, only, skip []string) (*converge.Engine, host.Host, error) {
	e, h, err := c.engineBy(ctx, only, skip, c.bootSpec)
	if err == nil {
		e.Named = stages.NamedNow // a kubeconfig that is gone must not keep kubelet from starting
	}
	return e, h, err
}

// bootSpec reads the machine's own spec. If it cannot be used, the spec that was applied last
// counts. A spec that was removed is an operator's decision: nothing stands in for it.
func (c *common) bootSpec(h host.View) (spec.Spec, spec.Places, error) {
	s, places, why := c.placedSpec(h, c.files)
	if why == nil || len(c.files) > 0 || errors.Is(why, errNoSpec) {
		return s, places, why
	}

	last, err := converge.ReadLastSpec(h)
	if err == nil {
		err = trust(h, last.Files()...)
	}
	switch {
	case err == nil:
		c.broken = &unusable{why, last}
		if c.run != nil { // doctor makes no run
			c.run.Node.Remark = "node.toml cannot be used, so this is by " + last.String()
		}
		return last.Spec, spec.Places{}, nil
	case converge.ReadJournal(h).Held() != "": // nothing is applied, whatever the spec says
		c.broken = &unusable{why: why}
		return spec.Spec{}, spec.Places{}, nil
	}

	return spec.Spec{}, spec.Places{}, &noSpecAtBoot{why, err}
}

// noSpecAtBoot is the error of a boot without a spec that it can use.
type noSpecAtBoot struct {
	own  error // why the machine's own spec cannot be used
	last error // why the spec that was applied last cannot be used either
}

func (n *noSpecAtBoot) Error() string { return n.own.Error() }
func (n *noSpecAtBoot) Unwrap() error { return n.own }

// trouble says what cannot be done without a spec, and why there is none.
func (n *noSpecAtBoot) trouble(cannot string) *trouble.Error {
	because := "the spec that was applied last cannot be used either: " + trouble.OneLine(n.last.Error())
	if errors.Is(n.last, converge.ErrNoLastSpec) {
		because = n.last.Error() + ", so there is no spec to go by instead"
	}
	return &trouble.Error{
		What:    cannot + ": " + firstFault(n.own),
		Because: []string{because},
		Try:     append(fixSpec(n.own), "then: "+trouble.Command("apply")),
	}
}

// instead names what gpuadm goes by.
func (u unusable) instead() string {
	if u.last.Since.IsZero() {
		return "no spec, since an undo holds applies"
	}
	return u.last.String()
}

// trouble says what is wrong, and what this process does in spite of it.
func (u unusable) trouble(does string) *trouble.Error {
	return &trouble.Error{
		What:    "cannot use this machine's spec: " + firstFault(u.why),
		Because: []string{does + " by " + u.instead()},
		Try:     append(fixSpec(u.why), "then: "+trouble.Command("apply")),
		Err:     u.why,
	}
}

// fixSpec is what to do first about a spec that cannot be used.
func fixSpec(why error) []string {
	var t *trouble.Error
	isInText := errors.As(why, new(trouble.Faults))
	if !isInText && errors.As(why, &t) && len(t.Try) > 0 {
		return slices.Clone(t.Try)
	}
	return []string{"fix the file, which " + trouble.Command("validate") + " checks"}
}

// firstFault is the first fault of a spec in one line, and how many more there are.
func firstFault(err error) string {
	var faults trouble.Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		return trouble.OneLine(err.Error())
	}

	text := faults[0].Error()
	if more := len(faults) - 1; more > 0 {
		text += fmt.Sprintf(", and %s more", trouble.Count(more, "fault"))
	}
	return text
}

// warnOfSpec says loudly what gpuadm goes by if the machine's own spec cannot be used.
func (c *common) warnOfSpec(does string) {
	if c.broken != nil {
		c.loudly(failureOf(c.broken.trouble(does)))
	}
}

// loudly prints an error of a run that continues, under systemd to the journal: journald often
// cannot assign the last lines of a process to its unit.
func (c *common) loudly(f ending) {
	f.Spec = nil // the error names the first of them
	if !c.toJournal() {
		f.print(c.env)
		return
	}

	v := newLogVoice(c)
	for _, line := range c.loudLines(f) {
		v.log.Error(line)
	}
}

// loudLines are the lines of an error for the journal, with commands as its reader types them.
func (c *common) loudLines(f ending) []string {
	e := c.env
	var text strings.Builder
	e.stderr = c.screen(&text)
	f.print(e)
	return strings.Split(strings.TrimSpace(text.String()), "\n")
}

// bootWithoutSpec ends a boot that has no spec. Where gpuadm has applied one that was removed
// since, that is an operator's decision: gpuadm leaves the machine as it is, and forgets the spec
// that it applied last, so that no later mistake brings it back.
func (c *common) bootWithoutSpec(err error) error {
	var none *noSpecAtBoot
	if errors.As(err, &none) {
		t := none.trouble("cannot converge this node")
		t.Because = append(t.Because, "kubelet does not start until "+trouble.Command("apply")+" succeeds")
		return usage{t}
	}

	h, removed, openErr := c.specRemoved(err)
	if openErr != nil || !removed {
		return cmp.Or(openErr, err)
	}
	if err := converge.ForgetSpec(h); err != nil {
		return err
	}
	c.answer(removedSpec() + ": gpuadm leaves this machine as it is.")
	return nil
}

// specRemoved says whether there is no spec, and gpuadm has applied one on this machine before.
func (c *common) specRemoved(err error) (h host.Host, removed bool, _ error) {
	if !errors.Is(err, errNoSpec) || len(c.files) > 0 {
		return nil, false, nil
	}
	h, openErr := c.open(c.rootDir, nil)
	if openErr != nil {
		return nil, false, openErr
	}
	_, readErr := converge.ReadLastSpec(h)
	unknown := errors.Is(readErr, converge.ErrNoLastSpec) || errors.Is(readErr, fs.ErrPermission)
	return h, !unknown, nil
}

// removedSpec says that the machine's spec is gone.
func removedSpec() string {
	return path.Join(specHome, "node.toml") + ", which gpuadm applied here, was removed"
}

// reportSpec reports that the machine's own spec cannot be used: in the journal, and as an Event of
// the Node. A reboot would show it otherwise, when it is too late.
func (c *common) reportSpec(ctx context.Context) {
	t := c.broken.trouble("the next boot goes")
	line := t.What + ": " + t.Because[0]
	c.answer(line + "; to fix it: " + strings.Join(t.Try, ", "))
	c.run.ReportSpec(ctx, line)
}

// reportNoSpec reports that the next boot has no spec.
func (c *common) reportNoSpec(err error) error {
	var none *noSpecAtBoot
	if errors.As(err, &none) {
		return usage{none.trouble("the next boot cannot let kubelet start")}
	}

	_, removed, openErr := c.specRemoved(err)
	if openErr != nil || !removed {
		return cmp.Or(openErr, err)
	}
	c.answer(removedSpec() + ": from the next boot on gpuadm leaves this machine as it is.")
	return nil
}
