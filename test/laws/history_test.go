// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Random histories of specs, kills, errors and edits of others. Whatever came before, an apply ends
// as on a fresh machine that others have edited alike, and an undo of all in the first tree with
// the edits of others.

// pool is what a history applies.
var pool = []wish{
	{},
	{text: sections["handler"]},
	{text: sections["default"] + labelsA},
	{text: sections["other"] + labelsB + taint},
	{text: sections["default"], install: true},
	{text: labelsB, install: true},
}

// lastly is what a history ends with: it has all sections, since what a section has made that is
// gone is released, and stays.
var lastly = []wish{
	{text: sections["default"] + labelsA, install: true},
	{text: sections["other"] + "[node]\nstartup_taint = \"none\"\n", install: true},
	{text: sections["handler"] + labelsB + taint, install: true},
}

// seedVariable runs one history alone, or some: its number is the seed. It is one number, or the
// first and the last: 500-999.
const seedVariable = "GPUADM_SEED"

// seeds says which histories a test runs: those that the variable names, or the first ones, in a
// nightly run more of them.
func seeds(t testing.TB, short, usual, nightly uint64) (from, many uint64) {
	t.Helper()
	if text := os.Getenv(seedVariable); text != "" {
		first, last, ok := strings.Cut(text, "-")
		if !ok {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 64)
		to, err2 := strconv.ParseUint(last, 10, 64)
		err := errors.Join(err1, err2)
		must.That(t, err == nil && to >= from, "%s=%s: %v", seedVariable, text, err)
		return from, to - from + 1
	}

	switch {
	case check.All():
		which, of := check.Part()
		from = nightly * uint64(which-1) / uint64(of)
		return from, nightly*uint64(which)/uint64(of) - from
	case testing.Short():
		return 0, short
	}

	return 0, usual
}

func TestRandomHistories(t *testing.T) {
	var able []machine
	for _, m := range machines(t) {
		if !slices.ContainsFunc(slices.Concat(pool, lastly), func(w wish) bool { return len(plan(t, m.boot(t), w.engine(t)).Cannot()) > 0 }) {
			able = append(able, m)
		}
	}

	must.That(t, len(able) >= 5, "only %d machines take all specs", len(able))
	from, many := seeds(t, 5, 50, 500)
	for seed := from; seed < from+many; seed++ {
		m := able[seed%uint64(len(able))]
		t.Run(fmt.Sprintf("seed %d on %s", seed, m.name), func(t *testing.T) {
			t.Parallel()
			newHistory(t, m, seed).run()
		})
	}
}

// A history is a machine that much happens to.
type history struct {
	*testing.T
	machine      machine
	seed         uint64
	random       *rand.Rand
	node         *simhost.Node
	foreignEdits *foreignEdits
	alone        []string // files that are gpuadm's alone, and that others may remove
	told         []string
}

func newHistory(t *testing.T, m machine, seed uint64) *history {
	h := &history{
		T:       t,
		machine: m,
		seed:    seed,
		random:  rand.New(rand.NewPCG(seed, 14)),
		node:    m.boot(t),
	}
	h.node.Reboot()
	var engines []*converge.Engine
	for _, w := range slices.Concat(pool, lastly) {
		engines = append(engines, w.engine(t))
	}
	h.foreignEdits = othersOf(t, h.node, engines...)
	h.alone = []string{stages.Binary, "/etc/systemd/system/" + stages.BootUnit, "/etc/systemd/system/kubelet.service.d/50-gpuadm.conf"}
	return h
}

func (h *history) tell(format string, args ...any) {
	h.told = append(h.told, fmt.Sprintf(format, args...))
}

// run runs the history and holds what must hold at its end.
func (h *history) run() {
	defer func() {
		if p := recover(); p != nil {
			h.told = append(h.told, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
			h.Fail()
		}
		if h.Failed() {
			h.Logf("%s=%d repeats this history:\n%s", seedVariable, h.seed, strings.Join(h.told, "\n"))
		}
	}()
	for range 3 + h.random.IntN(10) {
		h.step()
		if _, err := (wish{}).engine(h).Plan(context.Background(), h.node.View()); err != nil {
			h.Fatalf("no plan: %v", err)
		}
	}

	last := lastly[h.random.IntN(len(lastly))]
	h.tell("at last: %s", last)
	want := h.foreignEdits.fresh(h, h.machine)
	_, refused := last.engine(h).Apply(context.Background(), want) // as others have left the machine: without an engine
	_, err := last.engine(h).Apply(context.Background(), h.node)
	switch {
	case refused != nil:
		h.mayRefuse(err)
	case err != nil:
		h.Fatalf("cannot apply: %v", err)
	default:
		h.foreignEdits.like(h, "applied at last", want, h.node)
	}

	if _, err := last.engine(h).Undo(context.Background(), h.node, "all", nil); err != nil {
		h.Fatalf("cannot undo all: %v", err)
	}
	h.foreignEdits.like(h, "all undone", h.foreignEdits.fresh(h, h.machine), h.node)
}

func (w wish) String() string {
	return fmt.Sprintf("apply %q, install %t", w.text, w.install)
}

// An operation is an apply or an undo.
type operation struct {
	name string
	do   func() error
}

func (h *history) operation() operation {
	w := pool[h.random.IntN(len(pool))]
	e, ctx := w.engine(h), context.Background()
	applies := func() error { _, err := e.Apply(ctx, h.node); return err }
	switch h.random.IntN(8) {
	case 0:
		return operation{"undo all", func() error {
			_, err := e.Undo(ctx, h.node, "all", nil)
			return err
		}}
	case 1, 2:
		return operation{"undo", func() error {
			_, err := e.Undo(ctx, h.node, "", nil)
			return err
		}}
	case 3:
		e.Unattended = true
		return operation{"unattended " + w.String(), applies}
	}

	return operation{w.String(), applies}
}

// step lets one thing happen.
func (h *history) step() {
	switch op := h.operation(); h.random.IntN(10) {
	case 0, 1, 2:
		h.cut(op)
	case 3:
		h.fails(op)
	case 4, 5, 6:
		h.edits()
	default:
		err := op.do()
		h.tell("%s: %v", op.name, err)
		h.mayRefuse(err)
	}
}

// mayRefuse holds that an operation that nothing disturbed says what to do where it refuses.
func (h *history) mayRefuse(err error) {
	h.Helper()
	if err == nil {
		return
	}
	if told := (*trouble.Error)(nil); !errors.As(err, &told) || len(told.Try) == 0 {
		h.Fatalf("refused, and no advice: %v", err)
	}
}

// cut cuts the power of the machine, or kills the process alone.
func (h *history) cut(op operation) {
	at := h.random.IntN(140)
	h.node.CutAt(h.node.Touches() + at)
	err := op.do()
	if !h.node.Off() {
		h.node.CutAt(-1)
		h.tell("%s: %v", op.name, err)
		h.mayRefuse(err)
		return
	}

	if h.random.IntN(3) == 0 {
		h.node.Revive()
		h.tell("%s, killed at touch %d", op.name, at)
		return
	}

	loss := []simhost.Loss{simhost.LoseAll, simhost.LoseData, simhost.LoseNothing, simhost.Random(h.random.Uint32())}[h.random.IntN(4)]
	h.node.Boot(loss)
	h.tell("%s, power cut at touch %d, %v", op.name, at, loss)
}

// fails lets one touch fail, or three.
func (h *history) fails(op operation) {
	at, err := h.node.Touches()+h.random.IntN(100), []error{syscall.EIO, syscall.ENOSPC}[h.random.IntN(2)]
	many := []int{1, 3}[h.random.IntN(2)]
	for i := range many {
		h.node.Fail(at+i, err)
	}
	from := h.node.Touches()
	result := op.do()
	for i := range many {
		h.node.Fail(at+i, nil)
	}
	h.tell("%s, %v at %d touches from %d: %v", op.name, err, many, at-from, result)
}

// oneKey is a line that can go by itself, and that the wish does not hold without.
var oneKey = regexp.MustCompile(`^\s*(?:BinaryName|default_runtime_name|KUBELET_EXTRA_ARGS)\s*=\s*"[^"]*"\s*$`)

// edits lets others edit a file.
func (h *history) edits() {
	names := h.foreignEdits.files()
	if h.random.IntN(6) == 0 {
		names = h.alone
	}
	name := names[h.random.IntN(len(names))]
	text, there := textOf(h, h.node, name)
	how := h.random.IntN(6)
	switch {
	case !there:
	case slices.Contains(h.alone, name):
		h.tell("others remove %s", name)
		// They disable a unit first. Without that its link leads nowhere: systemd says not found,
		// and what is not there counts as taken out.
		if unit := path.Base(name); path.Ext(unit) == ".service" {
			must.OK(h, h.node.SetUnit(context.Background(), unit, host.UnitChange{File: "disable"}))
		}
		must.OK(h, h.node.Remove(name))
	case how < 2:
		h.tell("others append to %s", name)
		appends(h.foreignEdits, h, h.node, name, text)
	case how < 4:
		h.tell("others rewrite %s", name)
		rewrites(h.foreignEdits, h, h.node, name, text)
	case how == 4 && path.Ext(name) != ".yaml": // kubelet does not start without it
		h.tell("others remove %s", name)
		must.OK(h, h.node.Remove(name))
		delete(h.foreignEdits.base, name)
		h.foreignEdits.edited[name] = true
	default:
		h.dropKey(name, text)
	}
}

// dropKey has another process remove a key of gpuadm's.
func (h *history) dropKey(name, text string) {
	base := keysOf(h, name, h.foreignEdits.base[name])
	var able []string
	for line := range strings.Lines(text) {
		if !oneKey.MatchString(line) {
			continue
		}
		without := strings.Replace(text, line, "", 1)
		left := keysOf(h, name, without)
		foreign := false
		for key := range keysOf(h, name, text) {
			_, kept := left[key]
			_, had := base[key]
			foreign = foreign || !kept && had
		}

		if !foreign {
			able = append(able, without)
		}
	}

	if len(able) > 0 {
		h.tell("another process removes a key of gpuadm's from %s", name)
		h.foreignEdits.write(h, h.node, name, able[h.random.IntN(len(able))])
	}
}
