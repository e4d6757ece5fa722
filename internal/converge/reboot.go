// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// rebootsMost is how many reboots a change may ask for.
const rebootsMost = 2

// askForReboot journals that a group's changes take effect after a reboot. The error is the one
// that asks for it, unless one of the changes has asked too often.
func (r *run) askForReboot(due []step, reboot error) error {
	for _, s := range due[1:] {
		err := r.recordReboot(s.Change, reboot)
		if !errors.As(err, new(host.Reboot)) {
			return err
		}
	}
	return r.recordReboot(due[0].Change, reboot)
}

// recordReboot journals that a change takes effect after a reboot, once in each boot.
func (r *run) recordReboot(c Change, reboot error) error {
	if err := r.rebootBudget(c); err != nil {
		return err
	}

	for _, rec := range r.journal.Records {
		asked := rec.What == "reboot" && rec.Change.key() == c.key()
		if asked && rec.Run == r.id && rec.Boot == r.boot {
			return reboot
		}
	}

	if err := r.write(Record{What: "reboot", Run: r.id, Boot: r.boot, Change: &c}); err != nil {
		return err
	}
	return reboot
}

// askedBefore says whether a change has asked for a reboot before, and its Before is the same now.
func (r *run) askedBefore(c Change) bool {
	for _, rec := range slices.Backward(r.journal.Records) {
		if rec.What == "reboot" && rec.Change.key() == c.key() {
			return rec.Change.Before == c.Before
		}
	}
	return false
}

// rebootBudget refuses the third reboot that a change asks for. An unattended run counts the
// reboots of all runs since the last that succeeded: otherwise each new run of the boot unit would
// have two more.
func (r *run) rebootBudget(c Change) error {
	boots := map[string]bool{}
	for _, rec := range r.journal.Records {
		switch {
		case rec.What == "end" && rec.Result == "ok":
			clear(boots)
		case rec.What == "reboot" && r.hasRebootedFor(rec, c):
			boots[rec.Boot] = true
		}
	}

	if len(boots) < rebootsMost {
		return nil
	}

	return &trouble.Error{
		What:    fmt.Sprintf("cannot make %s: it has no effect after %d reboots", c, len(boots)),
		Because: []string{"another reboot would not help, so the run stops here"},
	}
}

// hasRebootedFor says whether the machine has rebooted since a record asked for that, for the sake
// of a change.
func (r *run) hasRebootedFor(rec Record, c Change) bool {
	counts := rec.Run == r.id || r.engine.Unattended
	sameChange := rec.Change.key() == c.key() && rec.Change.After == c.After
	return counts && sameChange && rec.Boot != r.boot
}
