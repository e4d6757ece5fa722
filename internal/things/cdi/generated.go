// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// ctk is the toolkit's program. From 1.12 on it writes a CDI spec when it is told to.
// Sources: "Generating a CDI specification" in
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html;
// https://gitlab.archlinux.org/archlinux/packaging/packages/nvidia-container-toolkit/-/issues/1.
const ctk = "/usr/bin/nvidia-ctk"

// States of the spec that gpuadm has the toolkit's program write; cdiNone where that is not for
// gpuadm.
const (
	generatedMissing = "missing"
	generatedThere   = "there"
)

// generated is the spec of a toolkit without a service for it: before 1.18, or packed without it.
// gpuadm then has the toolkit's program write the spec to the place where the service would, which
// a reboot empties. Spec keeps the file current. A spec for the same devices that another program
// or an operator keeps elsewhere stays the only one.
type generated struct {
	// asks says that the driver must answer before a spec is missing. An undo does not ask it.
	asks bool
	// ofOwn is as in cdi.
	ofOwn bool
}

// Generated wants the spec to be there without the toolkit's service, too.
func Generated() converge.Want {
	return converge.Want{
		Thing: generated{asks: true},
		Why:   "this NVIDIA Container Toolkit has no service that writes it",
		To: func(found converge.State) (converge.State, error) {
			if found == generatedMissing {
				return generatedThere, nil
			}
			return found, nil
		},
	}
}

// GeneratedOfOwnDriver is Generated on a machine with a driver of its own.
func GeneratedOfOwnDriver() converge.Want {
	w := Generated()
	w.Thing = generated{asks: true, ofOwn: true}
	return w
}

func (generated) Ref() converge.Ref {
	return converge.Ref{Kind: "cdi", Name: "generated"}
}

func (g generated) Look(ctx context.Context, v host.View) (converge.State, error) {
	lacks, err := LacksService(ctx, v)
	if err != nil || !lacks {
		return cdiNone, err
	}
	_, err = v.Stat(Output(v))
	if err == nil {
		return generatedThere, nil
	}
	if !host.NotExist(err) {
		return "", err
	}

	if !g.asks {
		return generatedMissing, nil
	}
	offered, err := Offers(v, Kind, nil)
	if err != nil || offered {
		return cdiNone, err
	}
	_, want, err := devicesNow(ctx, v, g.ofOwn)
	if err != nil || len(want) == 0 {
		return cdiNone, err
	}
	return generatedMissing, nil
}

// TakeOut leaves a spec that is a service's by now.
func (generated) TakeOut(_ host.View, found, _, _ converge.State) (converge.State, []string, error) {
	return found, nil, nil
}

func (generated) Make(ctx context.Context, h host.Host, to converge.State) error {
	switch to {
	case generatedThere:
		return generate(ctx, h)
	case generatedMissing:
		return h.Remove(Output(h))
	}
	return nil
}

// generateLimit is how long the toolkit's program may take: it asks the driver, and a driver that
// hangs must not hold gpuadm's lock.
const generateLimit = 2 * time.Minute

// generate has the toolkit's program write the spec.
func generate(ctx context.Context, h host.Host) error {
	ctx, stop := context.WithTimeoutCause(ctx, generateLimit, host.OverLimit{Limit: generateLimit})
	defer stop()

	_, err := h.Do(ctx, path.Base(ctk), "cdi", "generate", "--output="+Output(h))
	if err == nil {
		return nil
	}
	return &trouble.Error{
		What: "cannot generate the CDI spec: " + err.Error(),
		Try: []string{
			`version = "1.18" in [toolkit]: its service writes the spec`,
			"cdi = false in [runtime], if containers get the GPUs without CDI here",
		},
		Err: err,
	}
}

// LacksService says whether the toolkit is here without the service that writes the spec. A masked
// service is an operator's no.
func LacksService(ctx context.Context, v host.View) (bool, error) {
	u, err := v.Unit(ctx, Unit)
	if u.Load != "not-found" {
		return false, err
	}
	_, err = v.Stat(ctk)
	if host.NotExist(err) {
		return false, nil
	}
	return err == nil, err
}

// devicesNow are the devices that the driver has now. ofOwn says that the driver is the machine's
// own.
func devicesNow(ctx context.Context, v host.View, ofOwn bool) (host.Driver, []cdiDevice, error) {
	d, err := v.Driver(ctx)
	var none *host.NoDriver
	if errors.As(err, &none) {
		later := none.Awaited()
		if !ofOwn || none.Again {
			later.Silent = ""
		}
		return d, nil, later
	}

	return d, cdiDevices(d), err
}
