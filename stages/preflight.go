// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

var preflight = converge.Stage{
	Name:  "preflight",
	About: "what must hold before the first touch",
	Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		if s.Driver.Expect == 0 || !f.Live {
			return nil, nil
		}
		return []converge.Want{gpusOnTheBus(s.Driver.Expect, f)}, nil
	},
}

// gpusOnTheBus wants as many GPUs as the spec expects. A GPU that fell off the bus is gone for lspci too, and a node
// that joins without it is paid for and never used.
func gpusOnTheBus(expect int, f facts.Facts) converge.Want {
	n := 0
	for _, p := range f.GPUs {
		if p.Display() {
			n++
		}
	}
	look := func(context.Context, host.View) (string, error) {
		if n == expect {
			return "", nil
		}
		return fmt.Sprintf("cannot go on: %d NVIDIA GPUs are on the PCI bus, node.toml expects %d", n, expect), nil
	}
	return things.Check("NVIDIA GPUs on the PCI bus", look, "expect in [driver]",
		"lspci -d 10de: lists them; if one is missing, power the machine off and on, then look at its seating and cables")
}
