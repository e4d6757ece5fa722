// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// besideDRA are the wants where NVIDIA's DRA driver makes partitions as pods ask for them. At its
// start it removes each partition that it has not made, so no layout lasts. A table without a
// layout asks for MIG mode alone: the driver switches it on Hopper and later, and not on Ampere,
// whose GPUs must be reset for it.
//
// Sources: kubernetes-sigs/dra-driver-nvidia-gpu at 22407113, cmd/gpu-kubelet-plugin,
// device_state.go (DestroyUnknownMIGDevices) and nvlib.go (obliterateStaleMIGDevices,
// isDynamicMIGCapable).
func besideDRA(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	list := []converge.Want{leftToDRA()}
	if s.MIG.FollowLabel && s.MIG.Layout == "" {
		return list, nil
	}
	entries, err := Asked(s.MIG, f.Files[s.MIG.File], f.Private[s.MIG.File])
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(entries, Entry.hasLayout) {
		return nil, refuseBesideDRA(f.DynamicMIG)
	}
	if f.Driver == nil {
		return []converge.Want{withoutDriver(s, f)}, nil
	}

	all, err := Assign(entries, f.Driver.GPUs)
	if err != nil {
		return nil, err
	}
	shared := &driverCache{driver: f.Driver}
	for _, a := range all {
		if a.GPU.Arch != "ampere" || a.GPU.Mode {
			continue
		}
		w, err := wantFor(a, shared, s, f)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}

	if len(list) > 1 {
		list = append(list, things.Resumed())
	}
	return list, nil
}

// hasLayout reports whether an entry asks for more than MIG mode: partitions, or whole GPUs.
func (e Entry) hasLayout() bool { return !e.Layout.Enabled || len(e.Layout.Wants) > 0 }

// leftToDRA wants nothing of the partitions, and releases what gpuadm has made: the driver takes
// GPUs as it finds them.
func leftToDRA() converge.Want {
	return untouched("partitions of the GPUs", nil, "the DRA driver makes them")
}

// refuseBesideDRA is the refusal of a layout; sign is what shows the DRA driver's gate.
func refuseBesideDRA(sign string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot keep the partitions that node.toml asks for: "+
			"NVIDIA's DRA driver makes and removes them as pods ask (DynamicMIG, %s)", sign),
		Because: []string{"at its start that driver removes each partition that it has not made"},
		Try: []string{
			"remove [mig] from node.toml: pods ask for a partition in a ResourceClaim",
			"on GPUs before Hopper write [[mig.gpu]] without a layout: it switches MIG mode on, which that driver cannot",
			"or keep the layout, and switch the gate off: draDriver.featureGates.DynamicMIG=false " +
				"in the GPU Operator's values, featureGates.DynamicMIG=false in those of the driver's own chart",
		},
	}
}
