// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// pausedFile lists what gpuadm stopped for a change and must start again: services, and persistence
// modes. It is in /run: after a boot systemd starts the enabled services, and persistence mode is
// off.
const pausedFile = "/run/gpuadm-paused"

// persistence is the prefix of a line for a GPU whose persistence mode was on.
const persistence = "persistence-mode:"

// Persistenced keeps GPUs attached while no process uses them.
const Persistenced = "nvidia-persistenced.service"

// Pauses lists the units that run: Pause would stop them.
func Pauses(ctx context.Context, v host.View, units []string) ([]string, error) {
	var running []string
	pids := map[int]bool{}
	for _, name := range units {
		u, err := v.Unit(ctx, name)
		if err != nil {
			return nil, err
		}
		alias := u.PID != 0 && pids[u.PID] // another name of a unit in the list
		if !runs(u) || alias {
			continue
		}
		pids[u.PID] = true
		if isMaskedUnit(u) {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot pause %s: it runs and is masked, so it could not be started again", name),
				Try:  []string{"systemctl unmask " + name + ", or stop it for good"},
			}
		}

		running = append(running, name)
	}

	return running, nil
}

func isMaskedUnit(u host.Unit) bool { return u.Load == "masked" || u.Enabled == "masked" }

// Pause stops the units that run. It lists them in pausedFile first: if the run is killed, the next
// run starts them again.
func Pause(ctx context.Context, h host.Host, units []string) error {
	running, err := Pauses(ctx, h, units)
	if err != nil {
		return err
	}
	if err := addPaused(h, running); err != nil {
		return err
	}

	for _, name := range running {
		if err := h.SetUnit(ctx, name, host.UnitChange{Job: "stop"}); err != nil {
			return err
		}
	}

	return nil
}

// PausePersistence pauses nvidia-persistenced, and turns off the persistence mode of these GPUs,
// named by address: the mode holds a GPU as a process does
// (https://github.com/NVIDIA/NVSentinel/issues/1690). ResumePersistence turns both on again. d is
// the driver's last answer.
func PausePersistence(ctx context.Context, h host.Host, gpus []string, d *host.Driver) error {
	u, err := h.Unit(ctx, Persistenced)
	if err != nil {
		return err
	}
	if runs(u) {
		if err := Pause(ctx, h, []string{Persistenced}); err != nil {
			return err
		}
		now, err := h.Driver(ctx) // the daemon has turned off its GPUs' mode as it stopped
		if err != nil {
			return err
		}
		d = &now
	}

	var addresses []string
	var lines []string
	for _, g := range d.GPUs {
		if g.Persistent && slices.Contains(gpus, g.Address) {
			addresses = append(addresses, g.Address)
			lines = append(lines, persistence+g.Address)
		}
	}

	if err := addPaused(h, lines); err != nil {
		return err
	}
	for _, address := range addresses {
		if err := h.SetPersistence(ctx, address, false); err != nil {
			return err
		}
	}

	return nil
}

// pausedLines is the list of what is paused.
func pausedLines(v host.View) ([]string, error) {
	data, err := v.ReadFile(pausedFile)
	if host.NotExist(err) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

func writePaused(h host.Host, lines []string) error {
	return h.WriteFile(pausedFile, []byte(strings.Join(lines, "\n")+"\n"), host.Attr{Mode: 0o644})
}

// addPaused adds lines to the list of what is paused.
func addPaused(h host.Host, lines []string) error {
	if len(lines) == 0 {
		return nil
	}

	all, err := pausedLines(h)
	if err != nil {
		return err
	}
	for _, line := range lines {
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}

	return writePaused(h, all)
}

// IsPaused reports whether something is paused.
func IsPaused(v host.View) (bool, error) {
	lines, err := pausedLines(v)
	return len(lines) > 0, err
}

// Resume starts what was paused, last stopped first. It continues after a failure: the error names
// what did not start, which stays on the list. Resume skips a unit that was removed or masked
// meanwhile.
func Resume(ctx context.Context, h host.Host) error {
	return resumeLines(ctx, h, func(string) bool { return true })
}

// ResumePersistence is Resume for what PausePersistence has paused. Without it each client has to
// attach the GPUs first, which takes time.
func ResumePersistence(ctx context.Context, h host.Host) error {
	return resumeLines(ctx, h, func(line string) bool {
		return line == Persistenced || strings.HasPrefix(line, persistence)
	})
}

// resumeLines starts what is due of the list of what is paused.
func resumeLines(ctx context.Context, h host.Host, due func(line string) bool) error {
	lines, err := pausedLines(h)
	if err != nil || !slices.ContainsFunc(lines, due) {
		return err
	}

	var failed error
	var left []string // last stopped first
	for _, line := range slices.Backward(lines) {
		if !due(line) {
			left = append(left, line)
			continue
		}
		if err := resume(ctx, h, line); err != nil {
			failed = host.Join(failed, err)
			left = append(left, line)
		}
	}

	if len(left) == 0 {
		return h.Remove(pausedFile)
	}

	if len(left) < len(lines) {
		slices.Reverse(left)
		failed = host.Join(failed, writePaused(h, left))
	}

	return failed
}

func resume(ctx context.Context, h host.Host, line string) error {
	address, isGPU := strings.CutPrefix(line, persistence)
	if isGPU {
		return resumeGPU(ctx, h, address)
	}

	u, err := h.Unit(ctx, line)
	if err == nil && (u.Load == "not-found" || isMaskedUnit(u)) {
		return nil
	}
	if err := h.SetUnit(ctx, line, host.UnitChange{Job: "start"}); err != nil {
		return fmt.Errorf("cannot start %s again: %w", line, err)
	}

	return nil
}

// resumeGPU turns a GPU's persistence mode on; nothing if the GPU is gone.
func resumeGPU(ctx context.Context, h host.Host, address string) error {
	err := h.SetPersistence(ctx, address, true)
	var lost *host.GPUError
	if errors.As(err, &lost) && (lost.Code == "NOT_FOUND" || lost.Code == "GPU_IS_LOST") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot turn persistence mode of GPU %s on again: %w", address, err)
	}

	return nil
}

// paused are the services that a run stopped and did not start again, because it was killed. Its
// state is their names, "none" if there are none.
type paused struct{}

const noPaused = "none"

// Resumed wants the services to run that an earlier run paused.
func Resumed() converge.Want {
	return converge.Following(paused{}, "an earlier run stopped them for a change, and ended before it could start them again")
}

// NewPaused builds the thing again, for undo.
func NewPaused(string) converge.Thing { return paused{} }

func (paused) Ref() converge.Ref { return converge.Ref{Kind: "paused", Name: "services"} }

func (paused) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return noPaused, nil
	}
	lines, err := pausedLines(v)
	if len(lines) == 0 {
		return noPaused, err
	}
	return converge.State(strings.Join(lines, " ")), err
}

func (paused) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != noPaused {
		return nil
	}
	return Resume(ctx, h)
}

// Affected returns found: a change that pauses services starts them again itself. Without a look
// there may be paused services: so undo, too, starts those of a killed run.
func (paused) Affected(found converge.State, _ converge.Change) converge.State {
	if found == "" {
		return "unknown"
	}
	return found
}

// Current is none.
func (paused) Current(converge.State) converge.State { return noPaused }
