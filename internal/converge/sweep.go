// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import "github.com/gpuadm/gpuadm/internal/host"

// A Sweeper can clear away what a make of it that was cut short has left beside it. A make sweeps by itself; but where a run
// was cut short and nothing is left to make, nobody would.
type Sweeper interface {
	Thing
	Sweep(host.Host) error
}

// sweep clears away what a run that was cut short has left.
func (r *run) sweep(cut Run) error {
	for _, c := range cut.Makes {
		t, err := r.ThingOf(c.Kind, c.Name)
		if err != nil {
			continue // a newer gpuadm's; what it left is no harm
		}
		if s, ok := t.(Sweeper); ok {
			if err := s.Sweep(r.h); err != nil {
				return err
			}
		}
	}
	return nil
}

// close ends a run that was cut short where nothing is left to make. An undo that an apply overtakes has not been made.
func (r *run) close(cut Run) error {
	if err := r.sweep(cut); err != nil {
		return err
	}
	result := "ok"
	if len(cut.Undoes) > 0 {
		result = "failed"
	}
	return r.j.write(r.h, Record{What: "end", Run: cut.ID, Result: result})
}
