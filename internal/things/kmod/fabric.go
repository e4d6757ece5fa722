// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// fabric is the GPUs' registration with NVLink's fabric manager: without it CUDA starts on no GPU
// of such a machine. Its states are "completed", "" (no GPU has a fabric), "waiting", and "failed"
// with what the driver says.
type fabric struct{ patience time.Duration }

// fabricUnit is the fabric manager.
const fabricUnit = "nvidia-fabricmanager.service"

// fabricPatience is how long GPUs may take to register: with eight GPUs it takes seconds, and up to
// minutes while NVLink 5 is being trained.
const (
	fabricPatience = 3 * time.Minute
	fabricPause    = time.Second
)

// Fabric wants every GPU registered with the fabric manager, and waits for it within bounds.
func Fabric(why string) converge.Want {
	w := converge.Following(fabric{fabricPatience}, why)
	w.Breaks = []string{"stop-clients"}
	return w
}

// NewFabric builds the thing again.
func NewFabric() converge.Thing { return fabric{fabricPatience} }

func (f fabric) Ref() converge.Ref { return converge.Ref{Kind: "fabric", Name: "nvlink"} }

func (f fabric) Look(ctx context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}

	d, err := v.Driver(ctx)
	var none *host.NoDriver
	switch {
	case errors.As(err, &none) && none.Again:
		return "", host.NewProcess
	case none != nil:
		return "", none.Awaited()
	case err != nil:
		return "", err
	}

	state, _ := registered(d)

	return state, nil
}

// registered returns the state of the registration, and a sentence for each GPU that is not
// registered.
func registered(d host.Driver) (converge.State, []string) {
	var state converge.State
	var sentences []string
	for _, g := range d.GPUs {
		switch {
		case g.Lost != "":
			sentences = append(sentences, fmt.Sprintf("GPU %s does not answer: %s", g.Address, g.Lost))

		case g.Fabric.State == "": // it has no fabric

		case g.Fabric.State == "completed" && g.Fabric.Status == "":
			if state == "" {
				state = "completed"
			}

		case g.Fabric.State == "completed":
			state = "failed"
			failed := fmt.Sprintf("GPU %s: its registration has failed: %s", g.Address, g.Fabric.Status)
			sentences = append(sentences, failed)

		default:
			if state != "failed" {
				state = "waiting"
			}
			now := strings.ReplaceAll(g.Fabric.State, "-", " ")
			sentences = append(sentences, fmt.Sprintf("GPU %s: its registration is %s", g.Address, now))
		}
	}

	return state, sentences
}

// Make waits. The driver does not retry a failed registration: that takes a restart of the fabric
// manager.
func (f fabric) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != "completed" {
		return nil
	}

	d, err := h.Driver(ctx)
	if err != nil {
		return err
	}
	if state, _ := registered(d); state == "failed" {
		if err := h.SetUnit(ctx, fabricUnit, host.UnitChange{Job: "restart"}); err != nil {
			return err
		}
	}

	late := fmt.Errorf("it did not end within %v", f.patience)
	ctx, stop := context.WithTimeoutCause(ctx, f.patience, late)
	defer stop()
	for {
		d, err := h.Driver(ctx)
		if err != nil {
			return err
		}
		state, sentences := registered(d)
		if state == "completed" {
			return nil
		}
		if host.Pause(ctx, fabricPause) != nil {
			log := things.LastLines(context.WithoutCancel(ctx), h, fabricUnit)
			return &trouble.Error{
				What:    fmt.Sprintf("cannot register the GPUs with the fabric manager: %v", context.Cause(ctx)),
				Because: append(sentences, log...),
				Try:     []string{"journalctl -u " + fabricUnit, "nvidia-smi -q, section Fabric"},
				Err:     context.Cause(ctx),
			}
		}
	}
}

// Affected says that GPUs register again when the fabric manager starts.
func (f fabric) Affected(found converge.State, by converge.Change) converge.State {
	_, active := things.UnitWords(by.After)
	if by.Kind == "unit" && by.Name == fabricUnit && active == "active" {
		return "waiting"
	}
	return found
}

// Current is completed, wherever there is a fabric.
func (f fabric) Current(found converge.State) converge.State {
	if found == "" {
		return ""
	}
	return "completed"
}
