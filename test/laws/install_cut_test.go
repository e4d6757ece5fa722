// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/stages"
)

// installing is the engine of apply --install.
func installing(t testing.TB, text string) *converge.Engine {
	e := engine(t, text)
	e.Stages = append([]converge.Stage{stages.Install([]byte("gpuadm\n"))}, e.Stages...)
	return e
}

// Law 8, with the install stage in front: an undo that a kill or a power cut ends at any touch is finished by the next one.
// A kill loses nothing of the disk and leaves the units as they run; a power cut boots the machine.
func TestUndoOfInstallCutAtEveryTouch(t *testing.T) {
	ctx := context.Background()
	tested := map[string]bool{}
	for _, m := range machines(t) {
		e := func() *converge.Engine { return installing(t, specs["default"]) }
		whole := m.boot(t)
		if len(plan(t, whole, e()).Cannot()) > 0 {
			e = func() *converge.Engine { return installing(t, "") }
		}
		whole.Reboot()
		made := fmt.Sprint(whole.Live(), names(plan(t, whole, e()).Changes))
		if tested[made] {
			continue // another machine like one before it
		}
		tested[made] = true
		first := tree(whole)
		apply(t, whole, e())
		applied := whole.Touches()
		undo(t, whole, e(), "all")
		compare(t, m.name+": undone without a cut", first, tree(whole))
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for at := range every(whole.Touches() - applied) {
				cut := applied + at
				for _, how := range []string{"kill", "power"}[:1+(at+1)%2] { // each costs as much
					n := m.boot(t)
					n.Reboot()
					apply(t, n, e())
					n.CutAt(cut)
					back, ended := e(), false // then only what no undo needs any more is cleared away
					back.Tell = func(ev converge.Event) { ended = ended || ev.What == converge.Ended }
					if _, err := back.Undo(ctx, n, "all", nil); err == nil && !ended || !n.Off() {
						t.Fatalf("touch %d: not cut: %v", at, err)
					}
					if how == "kill" {
						n.Revive()
					} else {
						n.Boot(losses(cut)[cut%len(losses(cut))])
					}
					if _, err := e().Undo(ctx, n, "all", nil); err != nil {
						t.Errorf("%s at touch %d: cannot undo again: %v %v", how, at, err, because(err))
						continue
					}
					// A kubelet that the boot has started with the gate goes on running without it.
					now := strings.Replace(tree(n), "kubelet.service enabled active stale", "kubelet.service enabled active fresh", 1)
					compare(t, fmt.Sprintf("%s at touch %d of undo, undone again", how, at), first, now)
				}
			}
		})
	}
	if len(tested) < 4 {
		t.Errorf("only %d machines tested", len(tested))
	}
}
