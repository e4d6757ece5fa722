// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// reset resets those of the GPUs that still wait for it: the driver may have reset some itself, or
// an operator since the plan. It asks the driver before and after, since a reset can have no
// effect, or work and still report an error. The error for GPUs that still wait is an *Unreset.
func (r *runner) reset(ctx context.Context, gpus []*gpuRun) error {
	if len(gpus) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}

	if err := r.lookAt(ctx, gpus); err != nil {
		return err
	}
	waiting := pending(gpus)
	if len(waiting) == 0 {
		return nil
	}

	failed := r.ResetGPUs(ctx, waiting...)
	if err := r.lookAt(ctx, gpus); err != nil {
		return host.Join(failed, err)
	}
	waiting = pending(gpus)
	if len(waiting) == 0 {
		return nil
	}

	u := &Unreset{GPUs: waiting, Err: failed}
	if failed != nil && r.Holders != nil {
		holders, err := r.Holders(ctx, waiting)
		if err != nil {
			return host.Join(failed, err)
		}
		u.Holders = holders
	}

	return u
}

// pending names the GPUs that wait for a reset.
func pending(all []*gpuRun) []string {
	var addresses []string
	for _, g := range all {
		if g.now.Mode != g.now.Pending {
			addresses = append(addresses, g.GPU)
		}
	}

	return addresses
}

// leaveToReboot drops the remaining steps of GPUs whose mode changes at the next boot; the others
// continue.
func (r *runner) leaveToReboot(u *Unreset) {
	r.unreset = u
	for _, g := range r.gpus {
		if slices.Contains(u.GPUs, g.GPU) {
			g.Steps = nil
		}
	}
}

// Exit statuses of nvidia-smi. Sources: RETURN VALUE in its manual,
// https://docs.nvidia.com/deploy/nvidia-smi/index.html and
// https://manpages.ubuntu.com/manpages/noble/man1/nvidia-smi.1.html.
const (
	smiUnavailable  = 3 // the operation is not available on the device
	smiNoPermission = 4
)

// Unreset reports GPUs that still wait for a reset to change their MIG mode.
type Unreset struct {
	GPUs    []string // PCI addresses
	Err     error    // the error of the reset; nil if it reported success
	Holders []string // processes that have a device of these GPUs open
}

// Boot reports whether only a reboot changes the mode: the driver asks for a reset, and a reset is
// not available on this machine or has no effect: "VM reboot is required" for a GPU that is passed
// through, says nvml.h at nvmlDeviceSetMigMode; on Azure's A100 a reset may end well and change
// nothing (cse_main.sh in https://github.com/Azure/AgentBaker).
func (u *Unreset) Boot() bool {
	var command *host.CommandError
	switch {
	case u.Err == nil:
		return true
	case !errors.As(u.Err, &command):
		return false
	case command.Code == smiUnavailable:
		return true
	}

	return command.Code > 0 && command.Code != smiNoPermission && len(u.Holders) == 0
}

func (u *Unreset) Error() string {
	what, _ := u.whatAndTry()
	return what
}

func (u *Unreset) Unwrap() error { return u.Err }

// whatAndTry returns the error's sentence, and what to do about it.
func (u *Unreset) whatAndTry() (what string, try []string) {
	gpus := "GPU " + strings.Join(u.GPUs, " and ")
	retry := []string{"end what uses the GPU, then run the same command again"}
	if u.Err == nil {
		return gpus + " was reset, and its MIG mode is as before: on some virtual machines only a restart of the machine changes it", retry
	}

	code := 0
	var command *host.CommandError
	if errors.As(u.Err, &command) {
		code = command.Code
	}
	cannot := "cannot reset " + gpus + ": "
	switch {
	case errors.Is(u.Err, fs.ErrNotExist):
		return cannot + "nvidia-smi is not installed",
			[]string{"install nvidia-smi (Debian and Ubuntu: nvidia-utils or nvidia-smi), or reset the GPU by hand, then run the same command again"}
	case code == smiUnavailable:
		return cannot + "this machine cannot reset its GPUs: " + u.Err.Error(), retry
	case code == smiNoPermission:
		return cannot + "no permission", []string{"run gpuadm as root, and in a container with all capabilities"}
	case len(u.Holders) > 0:
		return cannot + "it is in use", retry
	}

	return cannot + u.Err.Error(), retry
}
