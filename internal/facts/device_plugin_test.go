// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// blind is a machine on which one reader fails.
type blind struct {
	host.View
	folder, unit string
	file         string
	why          error // of the file
}

func (b blind) ReadFile(name string) ([]byte, error) {
	if name == b.file {
		return nil, &fs.PathError{Op: "open", Path: name, Err: b.why}
	}
	return b.View.ReadFile(name)
}

func (b blind) ReadDir(name string) ([]string, error) {
	if name == b.folder {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	return b.View.ReadDir(name)
}

func (b blind) Unit(ctx context.Context, name string) (host.Unit, error) {
	if name == b.unit {
		return host.Unit{}, syscall.EIO
	}
	return b.View.Unit(ctx, name)
}

// TestPluginUnseen: what could not be looked at is not a machine without a device plugin.
func TestPluginUnseen(t *testing.T) {
	const (
		unit    = "nvidia-k8s-device-plugin.service"
		wants   = "/etc/systemd/system/multi-user.target.wants"
		machine = "-- sim.toml --\n[[unit]]\nname = \"" + unit + "\"\nenabled = \"enabled\"\n" +
			"-- usr/lib/systemd/system/" + unit + " --\n[Service]\nExecStart=/usr/bin/nvidia-device-plugin\n" +
			"[Install]\nWantedBy=multi-user.target\n"
	)
	for name, x := range map[string]struct {
		blind blind
		says  string
	}{
		"sees":       {blind{}, ""},
		"no /proc":   {blind{folder: "/proc"}, "/proc"},
		"no folder":  {blind{folder: "/etc/systemd/system"}, "/etc/systemd/system"},
		"no links":   {blind{folder: wants}, wants},
		"no systemd": {blind{unit: unit}, unit},
	} {
		x.blind.View = must.Get(simhost.New([]byte(machine)))(t).View()
		found, err := FindPlugin(t.Context(), x.blind)
		all, allErr := Offering(t.Context(), x.blind)
		if x.says == "" {
			sees := found.Unit == unit && found.Program == NvidiaPlugin
			sees = sees && len(all) == 1 && all[0] == found.Runner
			check.That(t, err == nil && allErr == nil && sees, "%+v %+v, %v, %v", found, all, err, allErr)
			continue
		}

		for _, err := range []error{err, allErr} {
			check.That(t, err != nil && strings.Contains(err.Error(), x.says), "%s: %v", name, err)
		}
	}
}

// TestLoaderUnseen: where systemd does not answer, a unit may be loading the driver. A machine on
// which no systemd runs loads none.
func TestLoaderUnseen(t *testing.T) {
	const loader = "nvidia-setup.service"
	view := must.Get(simhost.New([]byte("-- sim.toml --\n")))(t).View()
	found, err := LoadsDriver(t.Context(), view)
	check.That(t, found == "" && err == nil, "%q, %v", found, err)
	found, err = LoadsDriver(t.Context(), blind{View: view, unit: loader})
	check.That(t, found == "" && errors.Is(err, syscall.EIO), "%q, %v", found, err)
}

// TestEnvironmentUnseen: a plugin whose environment cannot be read is not one with the default
// strategy, and such a control daemon of MPS is not one with CUDA's default folder. A process that
// has ended meanwhile is no error.
func TestEnvironmentUnseen(t *testing.T) {
	const machine = "-- proc/41/comm --\nnvidia-device-p\n" +
		"-- proc/41/cmdline --\n/usr/bin/nvidia-device-plugin\n" +
		"-- proc/41/environ --\nMIG_STRATEGY=mixed\n" +
		"-- proc/42/comm --\nnvidia-cuda-mps\n" +
		"-- proc/42/environ --\nCUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe\n"
	view := must.Get(simhost.New([]byte(machine)))(t).View()
	plugin, err := FindPlugin(t.Context(), view)
	check.That(t, err == nil && plugin.Strategy == "mixed", "%+v, %v", plugin, err)
	mps, err := FindMPS(t.Context(), view)
	check.That(t, err == nil && mps.Control == "42" && mps.Other == "", "%+v, %v", mps, err)

	for why, isFault := range map[error]bool{
		syscall.EACCES: true,
		syscall.EIO:    true,
		syscall.ENOENT: false,
		syscall.ESRCH:  false,
	} {
		_, err := FindPlugin(t.Context(), blind{View: view, file: "/proc/41/environ", why: why})
		names := err != nil && strings.Contains(err.Error(), "/proc/41/environ")
		check.That(t, names == isFault, "the plugin: %v: %v", why, err)
		_, err = FindMPS(t.Context(), blind{View: view, file: "/proc/42/environ", why: why})
		names = err != nil && strings.Contains(err.Error(), "/proc/42/environ")
		check.That(t, names == isFault, "MPS: %v: %v", why, err)
	}
}

// TestMountsUnseen: where the mounts cannot be read, the GPU Operator's driver container may be one
// of them.
func TestMountsUnseen(t *testing.T) {
	const machine = "-- proc/self/mounts --\noverlay /run/nvidia/driver overlay rw 0 0\n-- run/nvidia/driver/ --\n"
	view := must.Get(simhost.New([]byte(machine)))(t).View()
	g := &gathering{v: blind{View: view, file: "/proc/self/mounts", why: syscall.EIO}}
	sign := g.driverContainer()
	check.That(t, g.err != nil && strings.Contains(g.err.Error(), "/proc/self/mounts"), "%q, %v", sign, g.err)
}
