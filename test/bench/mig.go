// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// gpus is a machine with eight simulated A100 in one layout.
const gpus = `-- sim.toml --
[[gpu]]
model = "A100-40"
count = 8
mode = true
instance = [{ profile = "3g.20gb", start = 4 }, { profile = "2g.10gb", start = 0 }, { profile = "1g.5gb", start = 2 }, { profile = "1g.5gb", start = 3 }]
`

// slow is a machine with a driver that takes its time for each change, and counts them.
type slow struct {
	host.Host
	takes time.Duration
	calls *int
}

func (s slow) wait() { *s.calls++; time.Sleep(s.takes) }

func (s slow) SetMIGMode(ctx context.Context, gpu string, on bool) error {
	s.wait()
	return s.Host.SetMIGMode(ctx, gpu, on)
}

func (s slow) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	s.wait()
	return s.Host.CreateInstance(ctx, gpu, profile, at)
}

func (s slow) DestroyInstance(ctx context.Context, gpu string, id int) error {
	s.wait()
	return s.Host.DestroyInstance(ctx, gpu, id)
}

func (s slow) CreateCompute(ctx context.Context, gpu string, in, profile int, at host.Span) (int, error) {
	s.wait()
	return s.Host.CreateCompute(ctx, gpu, in, profile, at)
}

func (s slow) DestroyCompute(ctx context.Context, gpu string, in, id int) error {
	s.wait()
	return s.Host.DestroyCompute(ctx, gpu, in, id)
}

// partitions compares an apply with a planner that skips a converged GPU, and else destroys and rebuilds all on it.
func partitions() error {
	fmt.Println("\npartitions of 8 GPUs                     gpuadm            rebuilt        ratio")
	for _, c := range []struct{ what, layout string }{
		{"nothing to do", `"3g.20gb" = 1, "2g.10gb" = 1, "1g.5gb" = 2`},
		{"3g 2g 1g 1g to 3g 2g 2g", `"3g.20gb" = 1, "2g.10gb" = 2`},
		{"3g 2g 1g 1g to 7 x 1g", `"1g.5gb" = 7`},
	} {
		for _, takes := range []time.Duration{0, 100 * time.Millisecond} {
			var calls [2]int
			var wall [2]time.Duration
			for i, do := range []func(host.Host, spec.Spec) error{converged, rebuilt} {
				n, err := simhost.New([]byte(gpus))
				if err != nil {
					return err
				}
				s, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[[mig.gpu]]\nlayout = { " + c.layout + " }\n")})
				if err != nil {
					return err
				}
				began := time.Now()
				if err := do(slow{n, takes, &calls[i]}, s); err != nil {
					return err
				}
				wall[i] = time.Since(began)
			}
			ratio := "    -"
			if calls[1] > 0 {
				ratio = fmt.Sprintf("%5.2f", float64(calls[0])/float64(calls[1]))
			}
			fmt.Printf("%-24s %3d ms %4d calls %7.3f s %4d calls %7.3f s %s\n", c.what, takes.Milliseconds(), calls[0], wall[0].Seconds(), calls[1], wall[1].Seconds(), ratio)
		}
	}
	return impossible()
}

func converged(h host.Host, s spec.Spec) error {
	e := &converge.Engine{Stages: []converge.Stage{mig.Stage}, Spec: s, ThingOf: stages.ThingOf, Prune: stages.Prune, Version: "bench"}
	_, err := e.Apply(context.Background(), h)
	return err
}

func rebuilt(h host.Host, s spec.Spec) error {
	ctx := context.Background()
	d, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	entries, err := mig.Entries(s.MIG)
	if err != nil {
		return err
	}
	for _, g := range d.GPUs {
		m, err := mig.Of(g)
		if err != nil {
			return err
		}
		now, empty := mig.StateOf(g), mig.State{Mode: mig.On, Next: mig.On}
		least, err := m.Fit(now, entries[0].Layout)
		if err != nil {
			return err
		}
		if least.Target.String() == now.String() {
			continue
		}
		fit, err := m.Fit(empty, entries[0].Layout)
		if err != nil {
			return err
		}
		down, err1 := m.Steps(now, empty)
		up, err2 := m.Steps(empty, fit.Target)
		if err := errors.Join(err1, err2, mig.Run(ctx, h, mig.Way{GPU: g.Address, Steps: append(down, up...)})); err != nil {
			return err
		}
	}
	return nil
}

// impossible times how long it takes to say no: the budget is 50 ms.
func impossible() error {
	n, err := simhost.New([]byte(gpus))
	if err != nil {
		return err
	}
	s, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[[mig.gpu]]\nlayout = { \"1g.5gb\" = 3, \"2g.10gb\" = 2, \"3g.20gb\" = 1 }\n")})
	if err != nil {
		return err
	}
	calls, began := 0, time.Now()
	if err := converged(slow{n, 0, &calls}, s); err == nil {
		return errors.New("an impossible layout was made")
	}
	fmt.Printf("%-24s        %4d calls %7.3f ms (budget 50 ms)\n", "impossible layout", calls, time.Since(began).Seconds()*1000)
	return nil
}
