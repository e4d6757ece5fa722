// SPDX-License-Identifier: Apache-2.0

// Package doctor finds out what is wrong with a machine with NVIDIA GPUs, without a spec: checks
// read the machine, a graph says which finding explains which, and what no other finding explains
// is a root cause. Nothing is changed. Over the network only the API server is asked, with
// kubelet's own identity, and doctor does not wait for it.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Check is one question to the machine: a row of the table of faults, which docs/doctor.md lists
// too, and what finds the fault.
type Check struct {
	faults.Check

	// Find returns one finding for each object that has the fault. What it cannot read it leaves
	// out: Machine notes that.
	Find func(*Machine) []Finding
}

// Finding is a fault of one object.
type Finding struct {
	Object  string // a PCI address, a package, a file, a unit; "" is the machine itself
	What    string // one sentence with the values found
	Part    string // what of the object it is about, where an Edge must know
	Fix     string // in the place of the check's
	Command string // in the place of the check's, where it names the object
	Note    bool   // the fault is not the machine's: alone it is a note, and no cause
}

// Checks lists all checks, in the order in which a report names root causes.
func Checks() (all []Check) {
	find := finders()
	for _, c := range faults.Checks() {
		all = append(all, Check{c, find[c.Code]})
	}
	return all
}

// patience is how long a check may take, all of which run side by side: a file on a server that is
// gone never answers. It is longer than what a driver, a command and a daemon have.
const patience = 20 * time.Second

// Examine asks the machine all questions at the same time, and sorts the answers. The spec says
// what partitions are wanted.
func Examine(ctx context.Context, v host.View, s spec.Spec) Report {
	return examineUntil(ctx, v, s, time.After(patience))
}

func examineUntil(ctx context.Context, v host.View, s spec.Spec, over <-chan time.Time) Report {
	m := &Machine{ctx: ctx, View: v, spec: s}
	checks := Checks()
	found, waits := make([][]Finding, len(checks)), map[string]bool{}
	type answer struct {
		of    int
		found []Finding
	}
	answers := make(chan answer, len(checks))
	for i, c := range checks {
		waits[c.Code] = true
		go func() { answers <- answer{i, c.Find(m)} }()
	}
	known := make(chan struct{})
	go func() { m.Facts(); close(known) }()
	r := Report{Format: Format, Checks: len(checks)}
	for len(waits) > 0 && over != nil {
		select {
		case a := <-answers:
			found[a.of] = a.found
			delete(waits, checks[a.of].Code)
		case <-over:
			over = nil
			m.cannotRead(strings.Join(slices.Sorted(maps.Keys(waits)), ", "), fmt.Errorf("no answer within %v", patience))
		}
	}
	var hits []fault
	for i, c := range checks {
		slices.SortStableFunc(found[i], func(a, b Finding) int { return cmp.Compare(a.Object, b.Object) })
		for _, f := range found[i] {
			hits = append(hits, fault{c, f})
		}
	}
	r.Causes, r.Notes = causes(hits, Edges())
	if over != nil {
		<-known
		m.drainFirst(r.Causes)
	}
	select {
	case <-known:
		r.Host = m.Facts().String()
		if note := m.note(); note != "" {
			r.Notes = append(r.Notes, Found{What: note})
		}
	default:
	}
	r.Unread = m.notRead()
	return r
}
