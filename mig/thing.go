// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// gpu is how one GPU is partitioned.
type gpu struct {
	address     string
	driverCache *driverCache // nil: the driver is asked each time
}

// driverCache is the driver's answer, shared by all GPUs of a stage: to ask it once costs little more than for one GPU. Each
// GPU gets an answer once; a second read of the same GPU asks the driver again.
type driverCache struct {
	mu     sync.Mutex
	driver *host.Driver
	readBy map[string]bool // the GPUs that have read this answer
}

// ask returns the driver's answer for one read of a GPU.
func (s *driverCache) ask(ctx context.Context, v host.View, address string) (*host.Driver, error) {
	if s == nil {
		d, err := v.Driver(ctx)
		return &d, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver == nil || s.readBy[address] {
		d, err := v.Driver(ctx)
		if err != nil {
			return nil, err
		}
		s.driver, s.readBy = &d, nil
	}
	if s.readBy == nil {
		s.readBy = map[string]bool{}
	}
	s.readBy[address] = true
	return s.driver, nil
}

// last returns the answer of the last look.
func (s *driverCache) last(ctx context.Context, v host.View, address string) (*host.Driver, error) {
	if s != nil {
		s.mu.Lock()
		d := s.driver
		s.mu.Unlock()
		if d != nil {
			return d, nil
		}
	}
	return s.ask(ctx, v, address)
}

func (s *driverCache) forget() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.driver = nil
	}
}

// find is one GPU of a driver's; false if it does not know it.
func find(d *host.Driver, address string) (host.GPU, bool) {
	i := slices.IndexFunc(d.GPUs, func(g host.GPU) bool { return g.Address == address })
	if i < 0 {
		return host.GPU{}, false
	}
	return d.GPUs[i], true
}

// New builds the thing again from its name.
func New(name string) converge.Thing { return gpu{name, nil} }

func (g gpu) Kind() string { return "mig" }

// Name is the GPU's PCI address: its index changes when another one falls off the bus.
func (g gpu) Name() string { return g.address }

// Look is "" for a GPU that the driver does not know: it was taken out of the machine.
func (g gpu) Look(ctx context.Context, v host.View) (converge.State, error) {
	d, err := g.driverCache.ask(ctx, v, g.address)
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

// TakeOut is how the GPU was before us, if all that is on it now is ours or was there then: a reboot, or a run that was cut
// short, leaves less than was made. Beside partitions that were made outside gpuadm ours alone go: what was there before may no
// longer fit.
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

// among says whether a partition is among some, with no compute instance that they have not.
func (p Part) among(known []Part) bool {
	there := false
	var compute []Compute
	for _, q := range known {
		if q.Profile == p.Profile && q.Start == p.Start {
			there, compute = true, append(compute, q.Compute...)
		}
	}
	return there && within(p.Compute, compute)
}

// within says whether all of some compute instances are among those known, each counted once.
func within(some, known []Compute) bool {
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

// Breaks says who would lose an instance or the GPU. Changes to an instance without clients break nothing; a GPU that is reset,
// or changes its mode, is lost to every process that holds it open.
func (g gpu) Breaks(ctx context.Context, v host.View, before, after converge.State) (what []string, clients map[string][]string, err error) {
	d, err := g.driverCache.last(ctx, v, g.address)
	if err != nil {
		return nil, nil, err
	}
	at, known := find(d, g.address)
	if !known || StateOf(at).String() != string(before) {
		return nil, nil, nil // it will be read again
	}
	target, err := ParseState(string(after))
	if err != nil {
		return nil, nil, err
	}
	m, err := Of(at)
	if err != nil {
		return nil, nil, err
	}
	steps, err := m.Steps(StateOf(at), target)
	if err != nil {
		return nil, nil, err
	}
	users := hit(at, steps)
	if len(users) > 0 {
		what = append(what, "stop-clients")
	}
	if changesMode(steps) && m.Resets() {
		what = append(what, "reset-gpu")
	}
	return what, map[string][]string{"stop-clients": users, "reset-gpu": users}, nil
}

// hit names the processes that the steps would take their GPU or instance from, as far as the driver knows them.
func hit(g host.GPU, steps []Step) (list []string) {
	if changesMode(steps) {
		for _, pid := range g.Clients {
			list = append(list, fmt.Sprintf("process %d uses GPU %d", pid, g.Index))
		}
		return list
	}
	for i, in := range g.Instances {
		part := StateOf(host.GPU{MIG: true, Mode: true, Pending: true, Profiles: g.Profiles, Instances: g.Instances[i : i+1]}).Parts[0]
		goes := func(s Step) bool {
			return (s.Do == DestroyInstance || s.Do == DestroyCompute) && s.At.Start == in.At.Start && s.Name == part.Profile
		}
		if !slices.ContainsFunc(steps, goes) {
			continue
		}
		for _, pid := range in.Clients {
			list = append(list, fmt.Sprintf("process %d uses %s of GPU %d", pid, part, g.Index))
		}
	}
	return list
}

// Make goes the shortest way from the GPU's current state.
func (g gpu) Make(ctx context.Context, h host.Host, to converge.State) error {
	return g.MakeAll(ctx, h, []converge.Change{{Kind: g.Kind(), Name: g.address, After: to}})
}

// MakeAll changes several GPUs as one, so that a reset is of all that need one. GPUs that refuse their reset keep the mode
// they were asked for, for the next boot: that is the one half-way house, and it is the driver's own.
func (g gpu) MakeAll(ctx context.Context, h host.Host, all []converge.Change) error {
	g.driverCache.forget()
	defer g.driverCache.forget()
	d, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	var ways []Way
	var reset []string
	modes := map[string]bool{}
	for _, c := range all {
		w, target, err := wayTo(&d, c)
		if err != nil {
			return err
		}
		ways = append(ways, w)
		if changesMode(w.Steps) {
			modes[c.Name] = target.Mode == On
		}
		if slices.ContainsFunc(w.Steps, func(s Step) bool { return s.Do == Reset }) {
			reset = append(reset, c.Name)
		}
	}
	if len(modes) == 0 {
		return explain(Run(ctx, h, ways...))
	}
	err = things.Pause(ctx, h, clients())
	if err == nil {
		err = things.PausePersistence(ctx, h, reset)
	}
	if err != nil {
		return host.Join(err, things.Resume(context.WithoutCancel(ctx), h))
	}
	err = Run(ctx, h, ways...)
	if resumed := things.Resume(context.WithoutCancel(ctx), h); resumed != nil {
		return host.Join(explain(err), resumed)
	}
	if refused := (*Failure)(nil); errors.As(err, &refused) && refused.Step.Do == Reset && refused.Restored() && ctx.Err() == nil {
		for _, name := range reset {
			if err := h.SetMIGMode(ctx, name, modes[name]); err != nil {
				return err
			}
		}
		return host.Reboot{Why: fmt.Sprintf("GPU %s changes its MIG mode when it is reset, and refuses that now: %v", strings.Join(reset, " and "), refused.Err)}
	}
	return explain(err)
}

// wayTo is the way of one GPU to its desired state.
func wayTo(d *host.Driver, c converge.Change) (Way, State, error) {
	at, known := find(d, c.Name)
	if !known {
		return Way{}, State{}, &converge.Trouble{
			What: fmt.Sprintf("cannot partition GPU %s: the driver does not know it", c.Name),
			Try:  []string{"lspci -d 10de: says whether it is still on the bus; dmesg says why it may have fallen off"},
		}
	}
	target, err := ParseState(string(c.After))
	if err != nil {
		return Way{}, target, err
	}
	m, err := Of(at)
	if err != nil {
		return Way{}, target, err
	}
	steps, err := m.Steps(StateOf(at), target)
	return Way{c.Name, steps}, target, err
}

// Sweep starts the services again that a run which was killed had paused.
func (g gpu) Sweep(h host.Host) error { return things.Resume(context.Background(), h) }

func changesMode(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool { return s.Do == ModeOn || s.Do == ModeOff || s.Do == Reset })
}

// clients are the services of the machine's own that hold every GPU open and keep it from changing its mode, in the
// order to stop them in. The driver restores persistence mode by itself when nvidia-persistenced starts again.
// Source: nvidia-mig-manager's clients and https://github.com/NVIDIA/mig-parted/issues/181.
func clients() []string {
	return []string{
		"nvsm.service", "nvsm-core.service", "nvsm-mqtt.service", "nvsm-notifier.service", "nvsm-api-gateway.service",
		"nvidia-dcgm-exporter.service", "dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service",
		"nvidia-device-plugin.service", "nvidia-persistenced.service",
	}
}

// explain gives a failure the engine's form.
func explain(err error) error {
	f := (*Failure)(nil)
	if !errors.As(err, &f) {
		return err
	}
	t := &converge.Trouble{What: fmt.Sprintf("cannot %s on GPU %s: %v", f.Step, f.GPU, f.Err), Err: err}
	for _, g := range append([]RolledBack{f.RolledBack}, f.Others...) {
		for _, s := range g.Undone {
			t.Undone = append(t.Undone, fmt.Sprintf("GPU %s: %s", g.GPU, s))
		}
		if g.Restored() {
			t.Because = append(t.Because, fmt.Sprintf("GPU %s is in its former state: %s", g.GPU, g.Before))
		} else {
			t.Because = append(t.Because, fmt.Sprintf("GPU %s was %q and is %q now", g.GPU, g.Before, g.After))
		}
		for _, err := range g.Left {
			t.Because = append(t.Because, err.Error())
		}
	}
	refused := (*host.GPUError)(nil)
	if errors.As(f.Err, &refused) && refused.Code == "IN_USE" {
		t.Try = []string{"end what uses the GPU (nvidia-smi lists processes, gpuadm plan names who has a device open), then run the same command again"}
	}
	return t
}
