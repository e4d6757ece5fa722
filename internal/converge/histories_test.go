// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLongHistories: applies, undos that were cut short, undos that were not, and compactions
// between them never make a history that cannot be undone. Each journal grows to 150 to 400
// records, around the number above which it is compacted.
func TestLongHistories(t *testing.T) {
	many := uint64(8)
	switch {
	case os.Getenv("LAB_ALL") != "":
		many = 300
	case testing.Short():
		many = 4
	}

	compactions := 0
	cuts := 0
	for seed := range many {
		h := newHistory(t, seed)
		first := h.box.String()
		records := 150 + h.random.IntN(250)
		for len(h.journal().Records) < records && h.compactions == 0 {
			h.apply()
		}
		for range 1 + h.random.IntN(4) {
			h.cutUndo()
			for range h.random.IntN(12) {
				h.apply()
			}
			if h.random.IntN(3) == 0 {
				h.undo(h.someRun())
			}
		}

		h.undo("all")
		must.That(t, h.box.String() == first, "%s: all undone: %s, want %s", h, h.box, first)
		h.undo("all")
		compactions += h.compactions
		cuts += h.cuts
	}

	check.That(t, compactions >= int(many)/2, "%d journals were compacted", compactions)
	check.That(t, cuts >= int(many), "%d undos were cut short", cuts)
}

// A history is a toybox on which an operator works at random.
type history struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	box    *toybox

	compactions int // how often a run began by compacting the journal
	cuts        int // how many undos were cut short
	done        []string
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{
		t:      t,
		seed:   seed,
		random: rand.New(rand.NewPCG(seed, 60)),
		box:    newToybox(t, states{"a": "red", "b": "red", "chain": "before", "robot": "current"}),
	}
}

// String is the history for a failure.
func (h *history) String() string {
	return fmt.Sprintf("seed %d: %s", h.seed, strings.Join(h.done, ", "))
}

func (h *history) journal() converge.Journal { return converge.ReadJournal(h.box) }

// note keeps what was done, and whether the journal was compacted by it.
func (h *history) note(before int, format string, args ...any) {
	after := len(h.journal().Records)
	if after < before {
		h.compactions++
		h.done = append(h.done, fmt.Sprintf("compacted from %d records", before))
	}
	h.done = append(h.done, fmt.Sprintf(format, args...))
}

// apply wants some toys in some colours; the others are restored.
func (h *history) apply() {
	h.t.Helper()
	var wants []converge.Want
	for _, name := range []string{"a", "b", "c", "d"} {
		colour := converge.State([]string{"", "red", "blue", "green"}[h.random.IntN(4)])
		if colour != "" {
			wants = append(wants, h.box.want("block", name, colour))
		}
	}

	if h.random.IntN(2) == 0 {
		wants = append(wants, h.box.bead("chain", "mine"), h.box.want("robot", "robot", ""))
	}

	before := len(h.journal().Records)
	h.box.apply(h.t, stage("toys", wants...))
	h.note(before, "apply")
}

// someRun is a run that can be undone, or all.
func (h *history) someRun() string {
	ids := []string{"all"}
	for _, run := range h.journal().Runs() {
		if !run.Undone && len(run.Undoes) == 0 && len(run.Makes) > 0 {
			ids = append(ids, run.ID)
		}
	}

	return ids[h.random.IntN(len(ids))]
}

// cutUndo undoes some runs, and the power is cut at one of its touches.
func (h *history) cutUndo() {
	to := h.someRun()
	before := len(h.journal().Records)
	cut := h.random.IntN(8)
	h.box.CutAt(h.box.Touches() + cut)
	_, err := h.box.engine().Undo(h.t.Context(), h.box, to, nil)
	h.box.Reboot()
	if err != nil && !errors.Is(err, converge.ErrHalfUndone) {
		h.cuts++
	}
	h.note(before, "undo --to %s, cut at touch %d: %v", to, cut, err)
}

// undo undoes some runs. If it is refused, the command that the error names has to succeed.
func (h *history) undo(to string) {
	h.t.Helper()
	before := len(h.journal().Records)
	_, err := h.box.engine().Undo(h.t.Context(), h.box, to, nil)
	h.note(before, "undo --to %s: %v", to, err)
	noRun := err != nil && strings.Contains(err.Error(), "no such run")
	if err == nil || noRun {
		return
	}

	var refused *trouble.Error
	must.That(h.t, errors.Is(err, converge.ErrHalfUndone) && errors.As(err, &refused), "%s", h)
	_, hint, _ := strings.Cut(refused.Try[0], "--to ")
	hint = strings.TrimSuffix(hint, "\u2063")
	_, err = h.box.engine().Undo(h.t.Context(), h.box, hint, nil)
	must.That(h.t, err == nil, "%s: the hint, undo --to %s: %v", h, hint, err)
}
