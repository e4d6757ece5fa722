// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Own is what gpuadm knows of its own part on the machine. The caller finds it out: the gate and
// gpuadm's units are above this package.
type Own struct {
	Version string // of this gpuadm
	Spec    OwnSpec
	Units   []string // gpuadm's services, which run apply or plan
	NoCUDA  bool     // CUDA is not to be started

	// Wait is how long the View waits for all answers, and Left how much of that is left; where it
	// is nil, that is the constant Wait.
	Wait time.Duration
	Left func() time.Duration

	// Kubelet is the unit that waits for the gate, and Gate the drop-in that asks it. Shut says why
	// kubelet may not start; "" if it may, or if a run is in progress. It is nil for a user other
	// than root, who cannot read all that the gate reads.
	Kubelet, Gate string
	Shut          func(context.Context) string

	// AtWork reports whether a run of gpuadm's is in progress; nil for a user other than root.
	AtWork func() bool
}

// OwnSpec says what is wrong with the machine's own spec.
type OwnSpec struct {
	Fault   string // why it cannot be used; "" if it can, or if there is none
	Fix     string // what to do about that
	Instead string // by what a boot goes instead; "" by nothing, and the gate stays closed
	Removed bool   // it was removed, and gpuadm has applied it before
}

// unusableSpec finds a spec that cannot be used. It has the part closed if no other spec counts, so
// that no boot converges the machine.
func unusableSpec(m *Machine) []Finding {
	const file = "/etc/gpuadm/node.toml"
	s := m.own.Spec
	switch {
	case s.Removed:
		return []Finding{{
			Object: file,
			What:   file + ", which gpuadm applied here, was removed: boots leave this machine as it is",
			Note:   true,
		}}
	case s.Fault == "":
		return nil
	case s.Instead == "":
		what := s.Fault + "; and there is no spec to go by instead, so that no boot lets kubelet start"
		return []Finding{{
			Object: file,
			What:   what,
			Part:   "closed",
			Fix:    s.Fix,
		}}
	}

	return []Finding{{
		Object: file,
		What:   s.Fault + "; a boot goes by " + s.Instead,
		Fix:    s.Fix,
	}}
}

// failedUnits finds gpuadm's own services that have failed.
func failedUnits(m *Machine) (found []Finding) {
	for _, unit := range m.own.Units {
		u, ok := m.Unit(unit)
		if !ok || u.Active != "failed" {
			continue
		}
		what := unit + " has failed"
		if words := m.lastWords(unit); words != "" {
			what += "; its last words: " + words
		}
		found = append(found, Finding{Object: unit, What: what})
	}
	return found
}

// lastWords are the last lines that gpuadm itself has logged in a unit, without systemd's own; ""
// if journalctl does not answer.
func (m *Machine) lastWords(unit string) string {
	out, err := m.View.Ask(m.ctx, "journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=3",
		"--identifier=gpuadm", "--unit="+unit)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", " / ")
}

// closedGate finds a kubelet that gpuadm's gate keeps from starting.
func closedGate(m *Machine) []Finding {
	own := m.own
	if !m.hasNoProcess(own.Kubelet) {
		return nil
	}
	u, _ := m.Unit(own.Kubelet)
	tries := u.Active == "failed" || u.Active == "activating"
	isGate := func(file string) bool { return path.Base(file) == own.Gate }
	if !tries || !slices.ContainsFunc(u.Files, isGate) {
		return nil
	}
	if own.Shut == nil {
		m.cannotRead("gpuadm's gate", fs.ErrPermission)
		return nil
	}

	why := own.Shut(m.ctx)
	switch {
	case why != "":
		return []Finding{{Object: own.Kubelet, What: why}}
	case u.Active == "failed" && wasRefused(u):
		what := "gpuadm's gate was closed when systemd tried to start " + own.Kubelet + ", and is open now"
		return []Finding{{Object: own.Kubelet, What: what}}
	}

	return nil
}

// wasRefused says whether gpuadm's gate kept the unit from starting.
func wasRefused(u host.Unit) bool {
	return len(u.Refused) > 1 && path.Base(u.Refused[0]) == "gpuadm" && u.Refused[1] == "gate"
}

// ownJournal reads gpuadm's journal, which only root may do.
func (m *Machine) ownJournal() converge.Journal {
	_, err := m.View.Lstat(path.Join(converge.Home, "journal.jsonl"))
	if errors.Is(err, fs.ErrPermission) {
		m.cannotRead("gpuadm's journal", err)
		return converge.Journal{}
	}
	return converge.ReadJournal(m.View)
}

// held finds an undo that holds unattended applies. Its part is what the spec asks for, which no
// apply makes now.
func held(m *Machine) []Finding {
	run := m.ownJournal().Held()
	if run == "" {
		return nil
	}
	const text = "since the undo of run %s no boot and no DaemonSet applies a spec, until an operator does"
	what := fmt.Sprintf(text, run)
	part := ""
	switch {
	case m.spec.Has("runtime"):
		part = "runtime"
	case m.spec.MIG.Asked():
		part = "mig"
	}

	return []Finding{{What: what, Part: part, Note: true}}
}

// newerJournal finds a journal that this gpuadm must not continue. A newer gpuadm in a DaemonSet
// beside an older one in the image is as it should be.
func newerJournal(m *Machine) []Finding {
	j := m.ownJournal()
	newer := j.NewerThan(m.own.Version)
	if newer == "" {
		return nil
	}
	const text = "gpuadm %s changed this machine last, and unattended applies of this older %s do nothing"
	return []Finding{{What: fmt.Sprintf(text, newer, m.own.Version), Note: j.Newer == 0}}
}

// damagedJournal finds a journal that gpuadm does not trust, or cannot read all of.
func damagedJournal(m *Machine) []Finding {
	j := m.ownJournal()
	damage := j.Damage(m.View)
	if damage == "" || j.Newer > 0 {
		return nil
	}
	finding := Finding{What: damage}
	if j.Refused != nil {
		finding.Fix = strings.Join(j.Refused.Try, "; ")
	}
	return []Finding{finding}
}

// cutShort finds a run that no end was written of, and what a killed bake of this machine has left.
// While a run is at work neither is a fault.
func cutShort(m *Machine) (found []Finding) {
	run, cut := m.ownJournal().CutShort(host.BootID(m.View))
	left := host.Placeholders(m.View)
	if !cut && len(left) == 0 {
		return nil
	}
	if m.own.AtWork != nil && m.own.AtWork() {
		return nil
	}

	if cut {
		const text = "run %s has no end: a kill, a power cut or a wait has stopped it after %s"
		f := Finding{What: fmt.Sprintf(text, run.ID, trouble.Count(len(run.Makes), "change"))}
		switch {
		case len(run.Undoes) > 0:
			f.Command = trouble.Command("undo")
			f.Fix = "undo: it continues the run"
		case run.Repair != "":
			f.Command = trouble.Command("repair " + run.Repair)
			f.Fix = "repair: it continues the run"
		}

		found = append(found, f)
	}

	for _, name := range left {
		found = append(found, Finding{
			Object: name,
			What:   name + " is an empty file that a killed bake of this machine has left",
		})
	}

	return found
}
