// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// resetter is a machine that records resets, and may have a way of its own with them.
type resetter struct {
	host.Host
	resets *[]string
	reset  func(ctx context.Context, gpus []string) error
}

func (n resetter) ResetGPUs(ctx context.Context, all ...string) error {
	*n.resets = append(*n.resets, strings.Join(all, ","))
	if n.reset != nil {
		return n.reset(ctx, all)
	}
	return n.Host.ResetGPUs(ctx, all...)
}

// smi is how nvidia-smi refuses.
func smi(code int, cause error, words string) error {
	return &host.CommandError{Argv: []string{"nvidia-smi"}, Code: code, Cause: cause, Stderr: words}
}

// GPUs that wait for a reset are reset in one call, since those joined by NVLink are only reset together, and no other GPU is: not one
// that keeps its mode, nor one that the driver has reset itself when its mode was set.
func TestGPUsAreResetTogether(t *testing.T) {
	for tables, want := range map[string][]string{
		strings.ReplaceAll(passed, "= 2", "= 3"):  {"0000:1f:00.0,0000:27:00.0,0000:2f:00.0"},
		strings.ReplaceAll(a100s, "= 2", "= 3"):   nil,
		passed + "[[gpu]]\nmodel = \"A100-40\"\n": {"0000:1f:00.0,0000:27:00.0"},
	} {
		n := gpus(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\n"+tables)
		var resets []string
		res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, nil})
		if err != nil || len(res.Made) != 4 {
			t.Fatalf("%v, made %v", err, res.Made)
		}
		if !slices.Equal(resets, want) {
			t.Errorf("%s: resets of %v, want %v", tables, resets, want)
		}
	}
}

// Where only a boot changes the mode the others get their partitions, and a reset by hand does as well as a boot.
func TestUnresetGPUs(t *testing.T) {
	for name, reset := range map[string]func(context.Context, []string) error{
		"not available": func(context.Context, []string) error { return smi(3, errors.New("exit status 3"), "Not Supported") },
		"no effect":     func(context.Context, []string) error { return nil },
		"no reason":     func(context.Context, []string) error { return smi(255, errors.New("exit status 255"), "Unknown Error") },
	} {
		for _, byHand := range []bool{true, false} {
			n := gpus(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"7g.40gb\", start = 0 }]\n"+passed+"[[gpu]]\nmodel = \"A100-40\"\n")
			var resets []string
			e := engine(t, wantsMIG(`"3g.20gb" = 2`))
			res, err := e.Apply(context.Background(), resetter{n, &resets, reset})
			if err != nil || !strings.Contains(res.Reboot, "0000:1f:00.0 and 0000:27:00.0") || len(resets) != 1 {
				t.Fatalf("%s: %v, %+v, resets %v", name, err, res, resets)
			}
			if name == "no effect" && !strings.Contains(res.Reboot, "only a restart of the machine") {
				t.Errorf("%s: it says %s", name, res.Reboot)
			}
			if p := partitions(n); strings.Count(p, "3g.20gb@") != 4 || strings.Count(p, "off, on after a reset") != 2 {
				t.Errorf("%s: the GPUs that need no reset have not what is wanted: %s", name, p)
			}
			// Again, without a boot in between: the GPUs wait still, and nothing is rolled back.
			if res, err := e.Apply(context.Background(), resetter{n, &resets, reset}); err != nil || res.Reboot == "" {
				t.Errorf("%s, applied again: %v, %+v", name, err, res)
			}
			if byHand {
				must.OK(t, n.ResetGPUs(context.Background(), "0000:1f:00.0", "0000:27:00.0"))
			} else {
				n.Reboot()
			}
			resets = nil
			if res, err := e.Apply(context.Background(), resetter{n, &resets, reset}); err != nil || res.Reboot != "" || len(resets) > 0 {
				t.Errorf("%s, by hand %t: %v, %+v, resets %v", name, byHand, err, res, resets)
			}
			if p := plan(t, n, e); p.Now() > 0 {
				t.Errorf("%s, by hand %t: still planned: %v", name, byHand, p.Changes)
			}
		}
	}
}

// What an operator can do about a refused reset is no reason for a reboot: it is named, and all is as before.
func TestRefusedReset(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"no nvidia-smi": {smi(-1, fmt.Errorf("it is not installed: %w", fs.ErrNotExist), ""), "nvidia-smi is not installed"},
		"no permission": {smi(4, errors.New("exit status 4"), "Insufficient Permissions"), "no permission"},
		"in use":        {smi(255, errors.New("exit status 255"), "In use by another client"), "process 4711 (nv-hostengine) has /dev/nvidia1 open"},
	} {
		n := withProcesses(t, "[[gpu]]\nmodel = \"A100-40\"\nmode = true\ninstance = [{ profile = \"7g.40gb\", start = 0 }]\n"+passed)
		before := ids(t, n)
		var resets []string
		res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, func(context.Context, []string) error {
			if name == "in use" {
				opens(t, n, 4711, "/dev/nvidia1")
			}
			return c.err
		}})
		if err == nil || res.Reboot != "" || !strings.Contains(err.Error()+strings.Join(because(err), " "), c.says) {
			t.Errorf("%s: %v %v, %+v", name, err, because(err), res)
		}
		compare(t, name, before, ids(t, n))
	}
}

// A reset that an operator makes while gpuadm plans is not made again, and one that fails late has worked.
func TestResetElsewhere(t *testing.T) {
	n := gpus(t, passed)
	var resets []string
	res, err := engine(t, wantsMIG(`"3g.20gb" = 2`)).Apply(context.Background(), resetter{n, &resets, func(ctx context.Context, all []string) error {
		return errors.Join(n.ResetGPUs(ctx, all...), smi(255, errors.New("exit status 255"), "late"))
	}})
	if err != nil || len(res.Made) != 2 {
		t.Errorf("%v, %+v", err, res)
	}
	must.OK(t, n.SetMIGMode(context.Background(), first, false))
}

// withProcesses is a machine where processes may have NVIDIA's devices open.
func withProcesses(t testing.TB, tables string) *simhost.Node {
	t.Helper()
	archive := "-- sim.toml --\n" + tables + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- proc/devices --\nCharacter devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n\nBlock devices:\n" +
		"-- dev/nvidiactl device=195:255 --\n-- dev/nvidia0 device=195:0 --\n-- dev/nvidia1 device=195:1 --\n-- dev/nvidia-caps/nvidia-cap21 device=235:21 --\n"
	for pid, of := range map[int][2]string{
		4711: {"nv-hostengine", "0::/user.slice/user-0.slice/session-1.scope"},
		4712: {"nv-hostengine", "0::/system.slice/nvidia-dcgm.service"},
		4713: {"python3", "0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-" + strings.Repeat("0123", 16) + ".scope"},
	} {
		archive += fmt.Sprintf("-- proc/%d/comm --\n%s\n-- proc/%d/cgroup --\n%s\n-- proc/%d/fd/0 link=/dev/null --\n", pid, of[0], pid, of[1], pid)
	}
	return machine{"gpus", []byte(archive)}.boot(t)
}

// opens has a process open a device.
func opens(t testing.TB, n *simhost.Node, pid int, device string) {
	t.Helper()
	must.OK(t, n.Symlink(fmt.Sprintf("/proc/%d/fd/%d", pid, 3+len(device)), device))
}
