// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// gpu is the thing: the partitions of one GPU.
type gpu struct {
	address     string
	driverCache *driverCache // nil: the driver is asked each time
	stop        string       // units of node.toml that pause while the partitions change, with blanks between
}

// New builds the thing again from its line in the journal.
func New(r converge.Ref) converge.Thing { return gpu{address: r.Name, stop: r.Form} }

// Ref names a GPU by its PCI address: its index changes when another GPU falls off the bus. The
// units to pause are part of it, so that undo pauses them too.
func (g gpu) Ref() converge.Ref {
	return converge.Ref{Kind: "mig", Name: g.address, Form: g.stop}
}

// cache is the stage's cache, or a new one for this question.
func (g gpu) cache() *driverCache { return cmp.Or(g.driverCache, &driverCache{}) }

// Look returns "" for a GPU that the driver does not know: it was removed from the machine. While the
// driver lists a lost GPU without its address, that may be the one, and Look returns an error.
func (g gpu) Look(ctx context.Context, v host.View) (converge.State, error) {
	d, err := g.cache().ask(ctx, v)
	var none *host.NoDriver
	if errors.As(err, &none) && none.Again {
		return "", host.NewProcess
	}
	if err != nil {
		return "", err
	}

	found, known := find(d, g.address)
	if !known {
		return "", unaddressed(d, g.address)
	}
	if found.Lost != "" {
		return "", fmt.Errorf("cannot read GPU %s: %s", g.address, found.Lost)
	}

	return converge.State(StateOf(found).String()), nil
}

// unaddressed is the error for a GPU that may be one which the driver lists without an address.
func unaddressed(d *host.Driver, address string) error {
	for _, g := range d.GPUs {
		if g.Address == "" && g.Lost != "" {
			const format = "cannot read GPU %s: the driver does not say the address of GPU %d: %s"
			return fmt.Errorf(format, address, g.Index, g.Lost)
		}
	}
	return nil
}

// Outlasts says that a reload of the driver's module loses partitions, and on GPUs newer than
// Ampere the MIG mode.
// Source: MIG user guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/.
func (g gpu) Outlasts(state converge.State, made converge.Ref) bool {
	return made.Kind != "module" || state == "" || state == converge.State(Off)
}

// TakeOut returns the state before gpuadm, if each partition on the GPU was there before or is
// gpuadm's; some may be missing, after a reboot or a killed run. If another process has made
// partitions, it only removes gpuadm's, and restores none: the earlier ones may no longer fit.
func (g gpu) TakeOut(_ host.View, found, before, after converge.State) (converge.State, []string, error) {
	var states []State
	for _, text := range []converge.State{found, before, after} {
		s, err := ParseState(string(text))
		if err != nil {
			return "", nil, err
		}
		states = append(states, s)
	}

	now := states[0]
	was := states[1].Parts
	made := states[2].Parts

	var stay []Part
	var left []string
	for _, p := range now.Parts {
		switch {
		case !p.among(slices.Concat(was, made)):
			left = append(left, fmt.Sprintf("GPU %s has %s, which was made outside gpuadm: gpuadm does not restore %q", g.address, p, before))
			stay = append(stay, p)
		case p.among(was):
			stay = append(stay, p)
		}
	}

	if len(left) == 0 {
		return before, nil, nil
	}

	lost := func(p Part) bool { return !p.among(stay) }
	if now.Mode == states[1].Mode && !slices.ContainsFunc(was, lost) {
		left = nil
	}
	now.Parts = stay

	return converge.State(now.String()), left, nil
}

// among reports whether a partition is one of the known ones, with no other compute instances than
// they have.
func (p Part) among(known []Part) bool {
	exists := false
	var compute []int
	for _, k := range known {
		if k.Profile == p.Profile && k.Start == p.Start {
			exists = true
			compute = append(compute, k.Compute...)
		}
	}

	return exists && within(p.Compute, compute)
}

// within reports whether all of these compute instances are among the known ones, each counted
// once.
func within(some, known []int) bool {
	left := slices.Clone(known)
	for _, c := range some {
		i := slices.Index(left, c)
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}

	return true
}
