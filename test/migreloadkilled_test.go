// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// small are layouts that are soon made, for what is done at each touch.
var small = map[string][2]string{"A100-40": {`"3g.20gb" = 1`, `"4g.20gb" = 1`}, "H100-80": {`"3g.40gb" = 1`, `"4g.40gb" = 1`}}

// An undo that is killed at any touch, or cut short by a power cut, and goes on, ends with the partitions as one that was not.
func TestKilledUndoOfAnUpgradeKeepsPartitions(t *testing.T) {
	t.Parallel()
	for model, second := range map[string]string{"A100-40": small["A100-40"][1], "H100-80": ""} {
		undo := func(n *simhost.Node) (converge.Result, error) {
			return upgrading(t, newDriver, second).Undo(t.Context(), newProcess(n), "", nil)
		}
		whole, _ := upgraded(t, model, small[model][0], second)
		from := whole.Touches()
		undoIn(t, whole, upgrading(t, newDriver, second), "")
		want := loaded(t, whole)
		for at := range every(whole.Touches() - from) {
			n, _ := upgraded(t, model, small[model][0], second)
			n.CutAt(from + at)
			_, err := undo(n)
			if err == nil && !n.Off() { // the next process is killed
				_, err = undo(n)
			}
			if err == nil {
				continue // it was clearing away what nobody needs
			}
			up := []func(*simhost.Node){(*simhost.Node).Revive, (*simhost.Node).Reboot}[at%2]
			up(n)
			if j, err := converge.ReadJournal(n); err != nil || j.Records[len(j.Records)-1].What == "end" {
				continue // its end was written, and only the disk had not said so
			}
			undoIn(t, n, upgrading(t, newDriver, second), "")
			compare(t, fmt.Sprintf("%s, %q, cut at touch %d", model, second, at), want, loaded(t, n))
		}
	}
}

// An undo that fails at any touch is turned back with the partitions, or the next one goes on. One GPU that fails once is tried
// again by itself.
func TestFailedUndoOfAnUpgradeKeepsPartitions(t *testing.T) {
	t.Parallel()
	for model, l := range small {
		whole, _ := upgraded(t, model, l[0], l[1])
		was, from := loaded(t, whole), whole.Touches()
		undoIn(t, whole, upgrading(t, newDriver, l[1]), "")
		want, turned := loaded(t, whole), 0
		for at := range every(whole.Touches() - from) {
			n, _ := upgraded(t, model, l[0], l[1])
			n.Fail(from+at, errors.New("no"))
			_, err := upgrading(t, newDriver, l[1]).Undo(t.Context(), newProcess(n), "", nil)
			if err == nil {
				_, err = upgrading(t, newDriver, l[1]).Undo(t.Context(), newProcess(n), "", nil)
			}
			if loaded(t, n) == was && err != nil {
				turned++
				continue
			}
			if err != nil && !strings.Contains(err.Error(), "close the run") {
				undoIn(t, n, upgrading(t, newDriver, l[1]), "")
			}
			compare(t, fmt.Sprintf("%s, failed at touch %d: %v", model, at, err), want, loaded(t, n))
		}
		if turned < 20 && !testing.Short() {
			t.Errorf("%s: only %d undos were turned back", model, turned)
		}
	}
}

// An upgrade that is killed at any touch, goes on and fails, is put back with the partitions that stood before the first process.
func TestKilledUpgradeThatFailsKeepsPartitions(t *testing.T) {
	t.Parallel()
	for model, l := range small {
		whole := partitioned(t, model, l[0])
		before, from, told := loaded(t, whole), whole.Touches(), 0
		fails := func(n *simhost.Node) error {
			_, err := upgrading(t, badDriver, l[1]).Apply(t.Context(), newProcess(n))
			return err
		}
		if err := fails(whole); err == nil {
			t.Fatal("a module was loaded that does not load")
		}
		for at := range every(whole.Touches() - from) {
			n := partitioned(t, model, l[0])
			n.CutAt(from + at)
			if err := fails(n); err == nil || !n.Off() {
				t.Fatalf("%s: not killed at touch %d: %v", model, at, err)
			}
			n.Revive()
			err := fails(n)
			if trouble := (*converge.Trouble)(nil); errors.As(err, &trouble) && slices.Contains(trouble.Try, "gpuadm apply mig, which makes what node.toml says of it") {
				told++ // this process has the library that was put back meanwhile
				mends(t, n, upgrading(t, oldDriver, l[0]))
			}
			if err == nil {
				t.Fatalf("%s: a module was loaded that does not load", model)
			}
			compare(t, fmt.Sprintf("%s, killed at touch %d", model, at), before, loaded(t, n))
		}
		if told > (whole.Touches()-from)/2 {
			t.Errorf("%s: %d times somebody else had to make the partitions", model, told)
		}
	}
}

// An upgrade that is killed at any touch and goes on is undone with the partitions that stood before the first process.
func TestUndoOfAKilledUpgradeKeepsPartitions(t *testing.T) {
	t.Parallel()
	for model, l := range small {
		whole := partitioned(t, model, l[0])
		before, from := loaded(t, whole), whole.Touches()
		applyIn(t, whole, upgrading(t, newDriver, l[1]))
		for at := range every(whole.Touches() - from) {
			n := partitioned(t, model, l[0])
			n.CutAt(from + at)
			e := upgrading(t, newDriver, l[1])
			_, err := e.Apply(t.Context(), newProcess(n))
			if err == nil && !n.Off() {
				_, err = e.Apply(t.Context(), newProcess(n))
			}
			if err == nil {
				t.Fatalf("%s: not killed at touch %d", model, at)
			}
			n.Revive()
			if j, err := converge.ReadJournal(n); err != nil || len(j.Runs()) < 2 {
				continue // it was killed before it began
			}
			applyIn(t, n, upgrading(t, newDriver, l[1]))
			undoIn(t, n, upgrading(t, newDriver, l[1]), "")
			compare(t, fmt.Sprintf("%s, killed at touch %d", model, at), before, loaded(t, n))
		}
	}
}
