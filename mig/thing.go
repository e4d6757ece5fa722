// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// gpu is the thing: the partitions of one GPU.
type gpu struct {
	address     string
	driverCache *driverCache // nil: the driver is asked each time
}

// driverCache is the driver's answer, shared by all GPUs of a stage: asking for all costs little
// more than asking for one, and each question attaches the GPUs that no process holds. MakeAll,
// which changes GPUs, asks the driver again before and after.
type driverCache struct {
	mu                 sync.Mutex
	driver             *host.Driver
	holders            *[]devices.Holder // the processes that have a device open, as of the same answer; nil: not asked
	pauses, modePauses *[]string         // the services to pause for a change of instances alone, and for a change of mode
}

// once returns the cached answer, and asks if there is none.
func once[T any](s *driverCache, held **T, ask func() (T, error)) (answer T, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *held != nil {
		return **held, nil
	}
	if answer, err = ask(); err == nil {
		*held = &answer
	}
	return answer, err
}

// cache is the stage's cache, or a new one for this question.
func (g gpu) cache() *driverCache { return cmp.Or(g.driverCache, &driverCache{}) }

// ask returns the driver's answer.
func (s *driverCache) ask(ctx context.Context, v host.View) (*host.Driver, error) {
	d, err := once(s, &s.driver, func() (host.Driver, error) { return v.Driver(ctx) })
	return &d, err
}

// open lists the processes that have a device open.
func (s *driverCache) open(ctx context.Context, v host.View) ([]devices.Holder, error) {
	return once(s, &s.holders, func() ([]devices.Holder, error) { return devices.Holders(ctx, v) })
}

// paused lists the running services that the plans pause; for a change of mode nvidia-persistenced
// is one of them.
func (s *driverCache) paused(ctx context.Context, v host.View, plans []Plan) ([]string, error) {
	held, units := &s.pauses, pausedFor(plans)
	if slices.ContainsFunc(plans, func(p Plan) bool { return changesMode(p.Steps) }) {
		held, units = &s.modePauses, append(units, things.Persistenced)
	}
	return once(s, held, func() ([]string, error) { return things.Pauses(ctx, v, units) })
}

// set replaces the answer; nil: the driver is asked again.
func (s *driverCache) set(d *host.Driver) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.driver, s.holders, s.pauses, s.modePauses = d, nil, nil, nil
	}
}

// find returns the driver's answer about one GPU; false if the driver does not know the GPU.
func find(d *host.Driver, address string) (host.GPU, bool) {
	i := slices.IndexFunc(d.GPUs, func(g host.GPU) bool { return g.Address == address })
	if i < 0 {
		return host.GPU{}, false
	}
	return d.GPUs[i], true
}

// New builds the thing again from its name.
func New(name string) converge.Thing { return gpu{name, nil} }

// Ref names a GPU by its PCI address: its index changes when another GPU falls off the bus.
func (g gpu) Ref() converge.Ref { return converge.Ref{Kind: "mig", Name: g.address} }

// Look returns "" for a GPU that the driver does not know: it was removed from the machine.
func (g gpu) Look(ctx context.Context, v host.View) (converge.State, error) {
	d, err := g.cache().ask(ctx, v)
	if err != nil {
		return "", err
	}
	at, known := find(d, g.address)
	switch {
	case !known:
		return "", nil
	case at.Lost != "":
		return "", fmt.Errorf("cannot read GPU %s: %s", g.address, at.Lost)
	}
	return converge.State(StateOf(at).String()), nil
}

// TakeOut returns the state before gpuadm, if each partition on the GPU is gpuadm's or was there
// before; some may be missing, after a reboot or a killed run. If others have made partitions, it
// only removes gpuadm's, and restores none: the earlier partitions may no longer fit.
func (g gpu) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	var s [3]State
	for i, text := range []converge.State{found, before, after} {
		if s[i], err = ParseState(string(text)); err != nil {
			return "", nil, err
		}
	}
	is, was, made := s[0], s[1], s[2]
	var stay []Part
	for _, p := range is.Parts {
		switch {
		case !p.among(append(slices.Clone(was.Parts), made.Parts...)):
			left = append(left, fmt.Sprintf("GPU %s has %s, which was made outside gpuadm: gpuadm does not restore %q", g.address, p, before))
			stay = append(stay, p)
		case p.among(was.Parts):
			stay = append(stay, p)
		}
	}
	if len(left) == 0 {
		return before, nil, nil
	}
	if is.Mode == was.Mode && !slices.ContainsFunc(was.Parts, func(p Part) bool { return !p.among(stay) }) {
		left = nil
	}
	is.Parts = stay
	return converge.State(is.String()), left, nil
}

// among reports whether a partition is one of the known ones, with no other compute instances than
// they have.
func (p Part) among(known []Part) bool {
	there := false
	var compute []int
	for _, q := range known {
		if q.Profile == p.Profile && q.Start == p.Start {
			there, compute = true, append(compute, q.Compute...)
		}
	}
	return there && within(p.Compute, compute)
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

// perGPU says whether a GPU that cannot change waits alone: failure in [mig] decides; with "auto"
// it does so at boot.
func perGPU(s spec.Spec, f facts.Facts) bool {
	return s.MIG.Failure == "per-gpu" || s.MIG.Failure != "all-or-nothing" && f.Booting
}

// alone is a GPU that is in use or does not answer: it waits, and the other GPUs get their
// partitions.
type alone struct {
	gpu
	to func(converge.State) (converge.State, error)
}

// Look lets a change wait that would take the GPU from the processes that use it.
func (a alone) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := a.gpu.Look(ctx, v)
	if err != nil || found == "" {
		return found, err
	}
	to, err := a.to(found)
	if err != nil || to == found {
		return found, nil // the engine calls To next, and reports its error
	}
	_, clients, err := a.Breaks(ctx, v, found, to)
	if users := clients["stop-clients"]; err == nil && len(users) > 0 {
		return "", trouble.Wait{
			For: fmt.Sprintf("GPU %s is in use: %s", a.address, strings.Join(trouble.Few(users, 3), ", ")),
			Try: []string{"end what uses it, or drain the node; the other GPUs have their partitions"},
		}
	}
	return found, err
}

// waits is the want for a GPU that does not answer.
func waits(g host.GPU, why string) converge.Want {
	return untouched("partitions of GPU "+called(g), trouble.Wait{For: "GPU " + called(g) + " does not answer: " + g.Lost}, why)
}

// mayStop says whether the spec lets a change end the processes that use a GPU.
func mayStop(s spec.Spec) bool { return slices.Contains(s.Disruption.Allow, "stop-clients") }

// withOwners adds the pods without a process to which kubelet has assigned the GPU, or an instance
// that will be destroyed: such a pod may still be pulling its image.
func withOwners(users []user, g host.GPU, steps []Step, pods []devices.PodDevice) []user {
	mode := changesMode(steps)
	for _, p := range pods {
		of := ""
		if mode && p.Device == g.UUID {
			of = fmt.Sprintf("GPU %d", g.Index)
		}
		for i, in := range g.Instances {
			if slices.ContainsFunc(in.Compute, func(c host.ComputeInstance) bool { return c.UUID == p.Device }) && (mode || goes(g, i, steps)) {
				of = fmt.Sprintf("%s of GPU %d", partOf(g, i), g.Index)
			}
		}
		if of != "" && p.Device != "" && !slices.ContainsFunc(users, func(u user) bool { return u.Pod == p.Pod }) {
			users = append(users, user{devices.Holder{Pod: p.Pod}, fmt.Sprintf("pod %s has %s", p.Pod, of)})
		}
	}
	return users
}

// partOf is an instance of a GPU as a Part of its state.
func partOf(g host.GPU, i int) Part {
	return StateOf(host.GPU{MIG: true, Mode: true, Pending: true, Profiles: g.Profiles, Instances: g.Instances[i : i+1]}).Parts[0]
}

// goes reports whether the steps destroy an instance of a GPU, or compute instances in it.
func goes(g host.GPU, i int, steps []Step) bool {
	part := partOf(g, i)
	return slices.ContainsFunc(steps, func(s Step) bool {
		return (s.Do == DestroyInstance || s.Do == DestroyCompute) && s.At.Start == part.Start && s.Name == part.Profile
	})
}
