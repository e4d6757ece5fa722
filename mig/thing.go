// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// gpu is how one GPU is partitioned.
type gpu struct {
	address string
	said    *said
}

// said is what the driver has said, shared by all GPUs of a stage: to ask it once costs little more than for one GPU.
type said struct {
	mu     sync.Mutex
	driver *host.Driver
}

func (s *said) gpu(ctx context.Context, v host.View, address string) (host.GPU, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver == nil {
		d, err := v.Driver(ctx)
		if err != nil {
			return host.GPU{}, err
		}
		s.driver = &d
	}
	i := slices.IndexFunc(s.driver.GPUs, func(g host.GPU) bool { return g.Address == address })
	if i < 0 {
		return host.GPU{}, &converge.Trouble{
			What: fmt.Sprintf("cannot look at GPU %s: the driver does not know it", address),
			Try:  []string{"lspci -d 10de: says whether it is still on the bus; dmesg says why it may have fallen off"},
		}
	}
	return s.driver.GPUs[i], nil
}

func (s *said) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver = nil
}

// New builds the thing again from its name.
func New(name string) converge.Thing { return gpu{name, &said{}} }

func (g gpu) Kind() string { return "mig" }

// Name is the GPU's PCI address: its index changes when another one falls off the bus.
func (g gpu) Name() string { return g.address }

func (g gpu) Look(ctx context.Context, v host.View) (converge.State, error) {
	at, err := g.said.gpu(ctx, v, g.address)
	if err != nil {
		return "", err
	}
	if at.Lost != "" {
		return "", fmt.Errorf("cannot look at GPU %s: %s", g.address, at.Lost)
	}
	return converge.State(StateOf(at).String()), nil
}

// TakeOut is how the GPU stood before us, if all that is on it now is ours or was there then: a reboot, or a run that was
// cut short, leaves less than was made.
func (g gpu) TakeOut(_ host.View, found, before, after converge.State) (converge.State, error) {
	var s [3]State
	for i, text := range []converge.State{found, before, after} {
		var err error
		if s[i], err = ParseState(string(text)); err != nil {
			return "", err
		}
	}
	for _, p := range s[0].Parts {
		known := func(q Part) bool { return q.Profile == p.Profile && q.Start == p.Start }
		if !slices.ContainsFunc(s[1].Parts, known) && !slices.ContainsFunc(s[2].Parts, known) {
			return "", fmt.Errorf("cannot put back the partitions of GPU %s: somebody else has made %s there since", g.address, p)
		}
	}
	return before, nil
}

// Make goes the shortest way from how the GPU stands. A GPU that refuses its reset keeps the mode it was asked for, for
// the next boot: that is the one half-way house, and it is the driver's own.
func (g gpu) Make(ctx context.Context, h host.Host, to converge.State) error {
	g.said.forget()
	defer g.said.forget()
	at, err := g.said.gpu(ctx, h, g.address)
	if err != nil {
		return err
	}
	target, err := ParseState(string(to))
	if err != nil {
		return err
	}
	m, err := Of(at)
	if err != nil {
		return err
	}
	steps, err := m.Steps(StateOf(at), target)
	if err != nil {
		return err
	}
	if !changesMode(steps) {
		return explain(Run(ctx, h, g.address, steps))
	}
	if err := things.Pause(ctx, h, clients()); err != nil {
		return errors.Join(err, things.Resume(context.WithoutCancel(ctx), h))
	}
	err = Run(ctx, h, g.address, steps)
	if resumed := things.Resume(context.WithoutCancel(ctx), h); resumed != nil {
		return errors.Join(explain(err), resumed)
	}
	if refused := (*Failure)(nil); errors.As(err, &refused) && refused.Step.Do == Reset && refused.Restored() {
		if err := h.SetMIGMode(ctx, g.address, target.Mode == On); err != nil {
			return err
		}
		return host.Reboot{Why: fmt.Sprintf("GPU %s changes its MIG mode when it is reset, and refuses that now: %v", g.address, refused.Err)}
	}
	return explain(err)
}

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
	for _, s := range f.Undone {
		t.Undone = append(t.Undone, fmt.Sprintf("GPU %s: %s", f.GPU, s))
	}
	if f.Restored() {
		t.Because = append(t.Because, fmt.Sprintf("GPU %s stands as before: %s", f.GPU, f.Before))
	} else {
		t.Because = append(t.Because, fmt.Sprintf("GPU %s stood %q and stands %q now", f.GPU, f.Before, f.After))
	}
	for _, err := range f.Left {
		t.Because = append(t.Because, err.Error())
	}
	refused := (*host.GPUError)(nil)
	if errors.As(f.Err, &refused) && refused.Code == "IN_USE" {
		t.Try = []string{"end what uses the GPU (nvidia-smi lists processes, gpuadm plan names who has a device open), then run the same command again"}
	}
	return t
}
