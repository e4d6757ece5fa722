// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// dropUnneeded removes what earlier runs brought and what, after the changes, nothing needs any
// more. Where the packager has no answer, or would remove anything else with it, all of it stays:
// it does no harm.
func (r *Resolution) dropUnneeded(ctx context.Context, v host.View, brought []converge.Change) {
	if len(Due(r.Changes)) == 0 {
		return
	}

	candidates := Named(brought)
	for _, c := range r.Changes { // those that go anyway
		if candidates[c.Name] && !Parse(c.After).Installed() {
			delete(candidates, c.Name)
		}
	}

	if len(candidates) == 0 {
		return
	}

	unneeded, err := r.Solver.Unneeded(ctx, v, r.Changes, candidates, r.Offers, r.pins())
	if err != nil {
		return
	}

	changes := slices.Clone(r.Changes)
	more := false
	for _, c := range brought {
		if !candidates[c.Name] || !slices.Contains(unneeded, c.Name) {
			continue
		}
		more = true
		i := indexOf(changes, c.Name)
		if i < 0 {
			i = len(changes)
			changes = append(changes, c)
		}
		changes[i].After = r.Solver.Without(v, c.Name)
		changes[i].Why = "nothing needs it any more, and an earlier run brought it"
		changes[i].Dependency = true
	}

	if more && r.onlyThese(ctx, v, changes) {
		r.Changes = changes
	}
}

// onlyThese reports whether the packager would do nothing but these changes.
func (r *Resolution) onlyThese(ctx context.Context, v host.View, changes []converge.Change) bool {
	trial := *r
	trial.Changes = changes
	moves, _, err := trial.ask(ctx, v, changes)
	return err == nil && trial.Difference(moves) == ""
}
