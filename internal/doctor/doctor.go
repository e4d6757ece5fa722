// SPDX-License-Identifier: Apache-2.0

// Package doctor finds out what is wrong with a machine with NVIDIA GPUs, without a spec. Checks
// read the machine, and a graph says which finding explains which: a finding that no other one
// explains is a root cause. Doctor changes nothing. Over the network it asks only the API server,
// with kubelet's own identity, and does not wait long for an answer.
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
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Check is a row of the table of faults, which docs/doctor.md lists too, and the function that
// finds the fault.
type Check struct {
	faults.Check

	// Find returns one finding for each object that has the fault. It skips what it cannot read,
	// and the Machine notes that.
	Find func(*Machine) []Finding
}

// Finding is a fault of one object.
type Finding struct {
	Object  string // a PCI address, a package, a file, a unit; "" is the machine itself
	What    string // one sentence with the values found
	Count   int    // how many GPUs are missing, where an Edge counts them
	Part    string // the part of the object that is faulty, where an Edge must know
	Fix     string // replaces the check's
	Command string // replaces the check's
	Other   string // why the repair of the check is not the fix of this finding; "" where it is
	Note    bool   // the fault is not the machine's: it is reported as a note, not as a cause
}

// Checks lists all checks, in the order in which a report names root causes.
func Checks() (all []Check) {
	find := finders()
	for _, check := range faults.Checks() {
		all = append(all, Check{check, find[check.Code]})
	}
	return all
}

// Wait is how long doctor waits, from its start, for the answers of a driver, a daemon, a
// program or a file, where the operator does not say it: with what it does besides it ends
// within two seconds.
const Wait = 1500 * time.Millisecond

// patience is how long all checks together may take, since a file on a server that is gone never
// answers. It is longer than the longest time that a driver has to start all its GPUs, and than a
// few waits one after the other.
func (m *Machine) patience() time.Duration { return 70*time.Second + 5*m.own.Wait }

// waitsLonger says how an operator has doctor wait longer.
func waitsLonger() string { return trouble.Command("doctor --wait 1m") + " waits longer" }

// Examine runs all checks at the same time, and sorts the findings. The spec says which partitions
// are wanted.
func Examine(ctx context.Context, v host.View, s spec.Spec, own Own) Report {
	m := &Machine{ctx: ctx, spec: s, own: own}
	m.View = noting{v, m}
	return m.examineUntil(time.After(m.patience()))
}

func (m *Machine) examineUntil(timeout <-chan time.Time) Report {
	go m.askDriver() // it may take longest
	factsKnown := make(chan struct{})
	go func() {
		m.Facts()
		close(factsKnown)
	}()

	checks := Checks()
	faults, complete := m.runChecks(checks, timeout)

	report := Report{
		Format: Format,
		Time:   m.View.Now().UTC().Format(time.RFC3339),
		Checks: len(checks),
	}
	report.Causes, report.Notes = causes(faults, Edges())
	if complete {
		<-factsKnown
		m.drainFirst(report.Causes)
		m.fillIn(report.Causes)
	} else {
		fillWithoutNode(report.Causes)
	}

	select {
	case <-factsKnown:
		report.Host = m.Facts().String()
		if note := m.note(); note != "" {
			report.Notes = append(report.Notes, Found{What: note})
		}
	default: // a file or a program that the facts need does not answer
	}

	if len(report.Causes) == 0 {
		m.silentDaemons() // a cause would say why
	}
	report.Unread = m.notRead()
	report.Judge()
	return report
}

// runChecks returns the faults in the order of the checks. complete is false if a check has not
// ended at the timeout; the Machine then notes which.
func (m *Machine) runChecks(checks []Check, timeout <-chan time.Time) (faults []fault, complete bool) {
	type answer struct {
		check int
		found []Finding
	}
	answers := make(chan answer, len(checks))
	waiting := map[string]bool{}
	for i, check := range checks {
		waiting[check.Code] = true
		go func() { answers <- answer{check: i, found: check.Find(m)} }()
	}

	found := make([][]Finding, len(checks))
	complete = true
	for complete && len(waiting) > 0 {
		select {
		case a := <-answers:
			found[a.check] = a.found
			delete(waiting, checks[a.check].Code)
		case <-timeout:
			complete = false
			codes := slices.Sorted(maps.Keys(waiting))
			late := fmt.Errorf("no answer within %v", m.patience())
			if of := m.waitsFor(); of != "" {
				late = fmt.Errorf("%w: %s", late, of)
			}
			m.cannotRead(strings.Join(codes, ", "), late)
		}
	}

	byObject := func(a, b Finding) int { return cmp.Compare(a.Object, b.Object) }
	for i, check := range checks {
		sorting.By(found[i], byObject)
		for _, finding := range found[i] {
			faults = append(faults, fault{check, finding})
		}
	}

	return faults, complete
}
