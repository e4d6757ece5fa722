// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// hasNoProcess reports whether a unit is loaded and has no process.
func (m *Machine) hasNoProcess(unit string) bool {
	if unit == "" {
		return false
	}
	u, ok := m.Unit(unit)
	isActive := u.Active == "active" || u.Active == "reloading"
	return ok && u.Load == "loaded" && u.PID == 0 && !isActive
}

// waitsForRestart reports whether systemd waits to restart a unit that has ended: a start by hand
// would end too.
// Sources: org.freedesktop.systemd1(5); service_state_table in systemd's src/basic/unit-def.c
// (auto-restart, auto-restart-queued).
func waitsForRestart(u host.Unit) bool {
	return u.Active == "activating" && strings.HasPrefix(u.Sub, "auto-restart")
}

// crashLoop describes a unit without a process that systemd restarts again and again.
func (m *Machine) crashLoop(unit string) []Finding {
	u, _ := m.Unit(unit)
	if !waitsForRestart(u) {
		return nil
	}

	what := fmt.Sprintf("%s has ended, and systemd waits to start it again", unit)
	killed := lastLineWith(m.Log(), "oom-kill:")
	if strings.Contains(killed, "/"+unit) { // dump_oom_summary in mm/oom_kill.c names the cgroup
		what += "; the kernel killed it, for its memory is used up"
	}
	if words := things.LastLines(m.ctx, m.View, unit); len(words) > 0 {
		what += "; its last words: " + strings.Join(words, " / ")
	}
	return []Finding{{
		Object:  unit,
		What:    what,
		Command: "sudo journalctl -u " + strings.TrimSuffix(unit, ".service") + " -n 50",
	}}
}

// stoppedUnit describes a unit without a process that systemd does not restart.
func (m *Machine) stoppedUnit(unit string) []Finding {
	u, _ := m.Unit(unit)
	if waitsForRestart(u) {
		return nil
	}
	return []Finding{{Object: unit, What: fmt.Sprintf("%s is %s", unit, u.Active)}}
}

// outdated reports whether a daemon started before one of its files was changed. It skips files
// that do not exist: only the folder's time could show a removal, and each other file of that
// folder changes it too.
func (m *Machine) outdated(unit string, files []string) bool {
	isMissing := func(name string) bool { return !m.has(name) }
	existing := slices.DeleteFunc(slices.Clone(files), isMissing)
	state, err := things.NewRestart(unit, existing, nil).Look(m.ctx, m.View)
	if err != nil || things.DaemonState(state) != things.Outdated {
		return false
	}

	rewritten, err := things.Rewritten(m.ctx, m.View, unit, existing)
	return err == nil && rewritten
}
