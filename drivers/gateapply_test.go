// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// TestGateDaysGoBy: applies on later days change nothing until the days are over, and then the gate has lapsed for good. What the
// engine made on the first day is what the days are counted from.
func TestGateDaysGoBy(t *testing.T) {
	n, err := simhost.New([]byte("-- etc/apt/preferences.d/ --\n-- proc/sys/kernel/osrelease --\n6.8.0-88-generic\n"))
	if err != nil {
		t.Fatal(err)
	}
	e := &converge.Engine{
		ThingOf: func(kind, name string) (converge.Thing, error) {
			if kind != "file" {
				return nil, fmt.Errorf("a thing of kind %s", kind)
			}
			return things.NewFile(name, nil), nil
		},
		Spec: spec.Spec{Sections: []string{"driver"}},
		Stages: []converge.Stage{{Name: "driver", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			wants, err := gateWants(Choice{}, spec.Driver{KernelGate: "14d"}, gated(""))
			for i := range wants {
				wants[i].Section = "driver"
			}
			return wants[len(wants)-1:], err
		}}},
	}
	for d := range 20 {
		res, err := e.Apply(context.Background(), n)
		if err != nil {
			t.Fatal(err)
		}
		if change := d == 0 || d == 14; (len(res.Made) > 0) != change {
			t.Errorf("day %d: %v", d, res.Made)
		}
		if data, err := n.ReadFile(GateFile); err != nil || strings.Contains(string(data), "Pin-Priority: -1") != (d < 14) {
			t.Errorf("day %d: %v\n%s", d, err, data)
		}
		n.Advance(24 * time.Hour)
	}
}
