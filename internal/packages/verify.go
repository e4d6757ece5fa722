// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Difference says how a simulation, or apt's announcement, differs from the changes; "" if it does
// not.
func (r *Resolution) Difference(moves []Move) string {
	moved := map[string]bool{}
	for _, move := range moves {
		moved[move.Name] = true
		if because := r.unplanned(move); because != "" {
			return because
		}
	}

	for _, c := range Due(r.Changes) {
		found := Parse(c.Before)
		if !moved[c.Name] && found.Broken == "" {
			return fmt.Sprintf("%s would leave %s as it is: %q", r.Solver.Name(), c.Name, found.String())
		}
	}

	return ""
}

// unplanned says how a move differs from the changes; "" if it does not.
func (r *Resolution) unplanned(move Move) string {
	tool := r.Solver.Name()
	i := indexOf(r.Changes, move.Name)
	switch {
	case i < 0 && move.Version == "":
		installed := r.Installed[move.Name].Version
		return fmt.Sprintf("%s would remove %s %s, which depends on what would change", tool, move.Name, installed)
	case i < 0:
		return fmt.Sprintf("%s would install %s %s beside it", tool, move.Name, move.Version)
	case move.Version == "" && r.Solver.Essential(move.Name):
		return fmt.Sprintf("%s would remove %s, and this machine cannot work without it", tool, move.Name)
	}

	after := Parse(r.Changes[i].After)
	switch {
	case move.Version == "" && after.Installed():
		return fmt.Sprintf("%s would remove %s, and %s is planned", tool, move.Name, after.Version)
	case move.Version == "":
		return ""
	case !after.Installed():
		return fmt.Sprintf("%s would install %s %s, and its removal is planned", tool, move.Name, move.Version)
	case after.Version != move.Version:
		return fmt.Sprintf("%s would make %s %q instead of %q", tool, move.Name, move.Version, after.Version)
	}
	return ""
}

// Confirm simulates once more, and refuses if the packager would do anything but the changes.
func (r *Resolution) Confirm(ctx context.Context, v host.View) error {
	moves, err := r.Solver.Simulate(ctx, v, r.Changes, r.Offers, nil)
	if err != nil {
		return err
	}
	if because := r.Difference(moves); because != "" {
		return Refused(r.Solver.Name(), because)
	}
	return nil
}

// Refused returns the error for a transaction that would do anything but the changes.
func Refused(tool, because string) error {
	return &trouble.Error{
		What:    "cannot change packages: " + tool + " would not do what was planned",
		Because: []string{because},
		Undone:  []string{trouble.NothingTouched},
		Try:     []string{"run the same command again, if another process has just installed packages"},
	}
}

// Verify returns an error if the database after a transaction differs from the changes: an exit
// code alone proves nothing. log is where an operator reads what the tool did: a file or a command.
func Verify(tool, log string, changes []converge.Change, installed map[string]State) error {
	var because []string
	for _, c := range changes {
		now := installed[c.Name].String()
		switch {
		case now == c.After:
		case now == "":
			because = append(because, fmt.Sprintf("%s is not installed and should be %q", c.Name, c.After))
		case c.After == "":
			because = append(because, fmt.Sprintf("%s is %q and should not be installed", c.Name, now))
		default:
			because = append(because, fmt.Sprintf("%s is %q and should be %q", c.Name, now, c.After))
		}
	}

	if len(because) == 0 {
		return nil
	}
	return &trouble.Error{
		What:    "cannot verify packages: " + tool + " reported success, and its database differs from the plan",
		Because: because,
		Try:     []string{log + ", which says what was done"},
	}
}
