// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Unlike says how a simulation, or apt's announcement, differs from the changes; "" if it does not.
func (r *Resolution) Unlike(moves []Move) string {
	tool, done := r.Solver.Name(), map[string]bool{}
	for _, m := range moves {
		done[m.Name] = true
		i := slices.IndexFunc(r.Changes, func(c converge.Change) bool { return c.Name == m.Name })
		switch {
		case i < 0 && m.Version == "":
			return fmt.Sprintf("%s would remove %s %s, which depends on what would change", tool, m.Name, r.Installed[m.Name].Version)
		case i < 0:
			return fmt.Sprintf("%s would install %s %s beside it", tool, m.Name, m.Version)
		case m.Version == "" && r.Solver.Essential(m.Name):
			return fmt.Sprintf("%s would remove %s, and this machine cannot work without it", tool, m.Name)
		}
		if after := Parse(r.Changes[i].After); after.Installed() != (m.Version != "") || m.Version != "" && m.Version != after.Version {
			return fmt.Sprintf("%s would make %s %q instead of %q", tool, m.Name, m.Version, after.Version)
		}
	}
	for _, c := range Due(r.Changes) {
		if found := Parse(c.Before); !done[c.Name] && found.Broken == "" {
			return fmt.Sprintf("%s would leave %s as it is: %q", tool, c.Name, found.String())
		}
	}
	return ""
}

// Exactly simulates once more, and refuses if the packager would do anything but the changes.
func (r *Resolution) Exactly(ctx context.Context, v host.View) error {
	moves, err := r.Solver.Simulate(ctx, v, r.Changes, r.Offers, nil)
	if err != nil {
		return err
	}
	if because := r.Unlike(moves); because != "" {
		return Refused(r.Solver.Name(), because)
	}
	return nil
}

// Refused returns the error for a transaction that would do anything but the changes.
func Refused(tool, because string) error {
	return &trouble.Error{
		What:    "cannot change packages: " + tool + " would not do what was planned",
		Because: []string{because, "nothing was touched"},
		Try:     []string{"run the same command again, if another process has just installed packages"},
	}
}

// Proven returns an error if the database after a transaction differs from the changes: an exit
// code alone proves nothing.
func Proven(tool string, changes []converge.Change, installed map[string]State) error {
	var because []string
	for _, c := range changes {
		if now := installed[c.Name].String(); now != c.After {
			because = append(because, fmt.Sprintf("%s is %q and should be %q", c.Name, now, c.After))
		}
	}
	if len(because) == 0 {
		return nil
	}
	return &trouble.Error{
		What:    "cannot verify packages: " + tool + " reported success, and its database differs from the plan",
		Because: because,
		Try:     []string{"/var/log/apt/term.log or dnf history info last, which say what was done"},
	}
}

// From returns the changes with the installed states as Before: in a rollback these differ from the
// plan.
func From(installed map[string]State, changes []converge.Change) []converge.Change {
	now := slices.Clone(changes)
	for i, c := range now {
		now[i].Before = installed[c.Name].String()
	}
	return now
}
