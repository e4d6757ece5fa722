// SPDX-FileCopyrightText: The gpuadm authors
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

// Exit statuses of nvidia-smi. Sources: RETURN VALUE in its manual, https://docs.nvidia.com/deploy/nvidia-smi/index.html and
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

// Boot reports whether only a reboot changes the mode. The driver has asked for a reset, and the reset is not available on this machine, or
// it has no effect: "VM reboot is required" for a GPU that is passed through, says nvml.h at nvmlDeviceSetMigMode; on Azure's A100 a
// reset may end well and change nothing (cse_main.sh in https://github.com/Azure/AgentBaker).
func (u *Unreset) Boot() bool {
	command := (*host.CommandError)(nil)
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
	why, _ := u.says()
	return why
}

func (u *Unreset) Unwrap() error { return u.Err }

// says returns the cause, and what to do about it.
func (u *Unreset) says() (why string, try []string) {
	names := "GPU " + strings.Join(u.GPUs, " and ")
	try = []string{"end what uses the GPU, then run the same command again"}
	command := (*host.CommandError)(nil)
	errors.As(u.Err, &command)
	switch {
	case u.Err == nil:
		return names + " was reset, and its MIG mode is as before: on some virtual machines only a restart of the machine changes it", try
	case errors.Is(u.Err, fs.ErrNotExist):
		return "cannot reset " + names + ": nvidia-smi is not installed",
			[]string{"install nvidia-smi (Debian and Ubuntu: nvidia-utils or nvidia-smi), or reset the GPU by hand, then run the same command again"}
	case command != nil && command.Code == smiUnavailable:
		return "cannot reset " + names + ": this machine cannot reset its GPUs: " + u.Err.Error(), try
	case command != nil && command.Code == smiNoPermission:
		return "cannot reset " + names + ": no permission", []string{"run gpuadm as root, and in a container with all capabilities"}
	case len(u.Holders) > 0:
		return "cannot reset " + names + ": it is in use", try
	}
	return "cannot reset " + names + ": " + u.Err.Error(), try
}

// reset resets the GPUs that wait for it: the driver may have reset some when it set their mode, or an operator after the
// plan. It reads the GPUs before and after, since a reset can have no effect, or work and still report an error.
func (r *runner) reset(ctx context.Context, asked []*gpuRun) error {
	if len(asked) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	waiting := pending(asked)
	if len(waiting) == 0 {
		return nil
	}
	failed := r.ResetGPUs(ctx, waiting...)
	if err := r.look(ctx); err != nil {
		return host.Join(failed, err)
	}
	waiting = pending(asked)
	if len(waiting) == 0 {
		return nil
	}
	u := &Unreset{GPUs: waiting, Err: failed}
	if failed != nil && r.Holders != nil {
		var err error
		if u.Holders, err = r.Holders(ctx, waiting); err != nil {
			return host.Join(failed, err)
		}
	}
	return u
}

// pending names the GPUs that wait for a reset.
func pending(all []*gpuRun) (names []string) {
	for _, g := range all {
		if g.now.Mode != g.now.Pending {
			names = append(names, g.GPU)
		}
	}
	return names
}

// leave drops the remaining steps of GPUs whose mode changes at the next boot; the others continue.
func (r *runner) leave(u *Unreset) {
	r.unreset = u
	for _, g := range r.gpus {
		if slices.Contains(u.GPUs, g.GPU) {
			g.Steps = nil
		}
	}
}
