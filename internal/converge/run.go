// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// run is one apply or undo at work.
type run struct {
	*Engine
	h  host.Host
	j  Journal
	id string
	at string // the stage at work

	done    map[string][]made // by stage, for a later one that proves it
	turning bool              // what a failed stage has changed is being put back

	boot string
	Result
}

// made is a change of this run with the thing that made it.
type made struct {
	Change
	thing  Thing
	asleep bool // it settles, and does not run
}

// start takes the machine's run lock and reads its journal. Without the lock nothing is touched.
func (e *Engine) start(h host.Host) (*run, func(), error) {
	unlock, err := h.Lock()
	if err != nil {
		return nil, nil, err
	}
	j, err := ReadJournal(h)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return &run{Engine: e, h: h, j: j, boot: bootID(h), done: map[string][]made{}}, unlock, nil
}

func (r *run) begin(goesOn bool, undoes []string) error {
	text := ""
	if goesOn {
		text = "goes on"
	} else {
		r.id = r.h.Now().UTC().Format("20060102T150405Z")
		for n, base := 2, r.id; slices.ContainsFunc(r.j.Records, func(o Record) bool { return o.Run == r.id }); n++ {
			r.id = fmt.Sprintf("%s-%d", base, n)
		}
	}
	r.Run = r.id
	r.event(Event{What: Began, Text: text})
	return r.j.write(r.h, Record{What: "begin", Run: r.id, Boot: r.boot, Tool: r.Version, Spec: r.Spec.Digest(), Undoes: undoes})
}

// end closes the run in the journal. What was stopped or waits for a reboot stays open, and the next run goes on with it.
func (r *run) end(err error) (Result, error) {
	if err != nil {
		r.Stage = r.at
	}
	if reboot := (host.Reboot{}); errors.As(err, &reboot) {
		r.Reboot = reboot.Why
		r.event(Event{What: Reboots, Text: reboot.Why})
		return r.Result, nil
	}
	if errors.Is(err, ErrStopped) || Passes(err) {
		return r.Result, err
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	if werr := r.j.write(r.h, Record{What: "end", Run: r.id, Result: result}); werr != nil && err == nil {
		err = &Trouble{What: fmt.Sprintf("cannot close the run: %v", werr), Err: werr, Because: []string{"all its changes were made and stand; the next apply closes it"}}
	}
	r.event(Event{What: Ended, Text: result})
	return r.Result, err
}

func (r *run) event(ev Event) {
	ev.Time, ev.Run = r.h.Now(), r.id
	r.tell(ev)
}

// listen has Say and Warn tell of the stage at work.
func (r *run) listen(ctx context.Context) context.Context {
	return Listen(ctx, func(what What, text string) { r.event(Event{Stage: r.at, What: what, Text: text}) })
}

func (r *run) journal(t Thing, c Change) error {
	if err := makeHome(r.h); err != nil {
		return err
	}
	if err := keep(r.h, t, c); err != nil {
		return err
	}
	c.Diff = ""
	return r.j.write(r.h, Record{What: "make", Run: r.id, Change: &c})
}

// bootID names the present boot; "" in a root folder, which never boots.
func bootID(v host.View) string {
	if !v.Live() {
		return ""
	}
	id, err := v.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
