// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
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
