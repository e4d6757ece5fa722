// SPDX-License-Identifier: Apache-2.0

package boottime

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// units are the units of the tests' machines.
var units = Units{
	Boot:    "gpuadm.service",
	Kubelet: "kubelet.service",
	Ready:   "gpuadm-ready.service",
}

// manager has time stamps as `systemctl show` prints them.
func manager(firmware, loader, initrd, userspace, finish, security int64) string {
	return fmt.Sprintf("FirmwareTimestampMonotonic=%d\nLoaderTimestampMonotonic=%d\nInitRDTimestampMonotonic=%d\n"+
		"UserspaceTimestampMonotonic=%d\nFinishTimestampMonotonic=%d\nSecurityStartTimestampMonotonic=%d\n",
		firmware, loader, initrd, userspace, finish, security)
}

func unit(id, active string, begun, entered, ended, main int64) string {
	return fmt.Sprintf("Id=%s\nActiveState=%s\nInactiveExitTimestampMonotonic=%d\nActiveEnterTimestampMonotonic=%d\n"+
		"InactiveEnterTimestampMonotonic=%d\nExecMainStartTimestampMonotonic=%d\n", id, active, begun, entered, ended, main)
}

// bootOf reads the boot of a machine whose kernel started at 10:00:00, and on which it is
// 10:10:00. Its first container started half a second ago.
func bootOf(t *testing.T, ofManager string, ofUnits []string, runs ...Run) string {
	t.Helper()
	n := must.Get(simhost.New([]byte("-- sim.toml --\nnow = 2026-11-21T10:10:00Z\n")))(t)
	n.Install("systemctl", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			if len(argv) == 3 {
				return []byte(ofManager), nil
			}
			return []byte(strings.Join(ofUnits, "\n")), nil
		},
	})
	const pod = "/var/log/pods/kube-system_kube-proxy-2xkpf_6c1f"
	for _, folder := range []string{"/proc", "/var", "/var/log", "/var/log/pods", pod, pod + "/kube-proxy"} {
		err := n.Mkdir(folder, host.Attr{Mode: 0o755})
		must.That(t, err == nil || strings.Contains(err.Error(), "exists"), "%v", err)
	}

	must.OK(t, n.WriteFile("/proc/uptime", []byte("600.00 4000.00\n"), host.Attr{Mode: 0o444}))

	b, err := Read(t.Context(), n, units, runs)
	must.OK(t, err)
	var all strings.Builder
	fmt.Fprintf(&all, "from %s\n", b.From)
	for _, s := range b.Steps {
		fmt.Fprintf(&all, "%d %d %s %s\n", s.At, s.Took, s.Name, s.Detail)
	}
	return strings.ReplaceAll(all.String(), " \n", "\n")
}

// TestFirmware: the parts before systemd are those that systemd-analyze prints for the same machine:
// https://github.com/systemd/systemd/issues/8422, "9min 39.222s (firmware) + 23.462s (loader) + 315ms
// (kernel) + 802ms (initrd) + 609ms (userspace)".
func TestFirmware(t *testing.T) {
	got := bootOf(t, manager(602684000, 23462000, 315000, 1117000, 1726000, 320000), nil)
	check.Equal(t, got, "from power-on\n"+
		"0 579222 firmware\n"+
		"579222 23462 boot loader\n"+
		"602684 315 kernel\n"+
		"602999 802 initrd\n"+
		"603801 609 systemd\n", "its boot:")
}

// TestUnits: a boot that installs a driver, by a machine without times of its firmware.
func TestUnits(t *testing.T) {
	run := Run{
		ID:   "20261121T100016Z",
		Time: time.Date(2026, 11, 21, 10, 0, 16, 500e6, time.UTC),
		Took: "packages 40.1 s, runtime 1.2 s",
	}
	before := Run{
		ID:   "20261120T090000Z",
		Time: run.Time.Add(-time.Hour),
		Took: "packages 1.0 s",
	}
	got := bootOf(t, manager(0, 0, 0, 2000182, 61000000, 2042364), []string{
		unit("gpuadm.service", "active", 16000000, 58100000, 0, 16010000),
		unit("kubelet.service", "active", 58150000, 58200000, 0, 58200000),
		unit("gpuadm-ready.service", "active", 58300000, 66000000, 0, 58300000),
	}, before, run)
	check.Equal(t, got, "from kernel\n"+
		"0 2000 kernel\n"+
		"2000 58999 systemd\n"+
		"16000 42100 gpuadm.service run 20261121T100016Z: packages 40.1 s, runtime 1.2 s\n"+
		"58100 0 gate opens\n"+
		"58200 0 kubelet.service starts\n"+
		"58300 7700 gpuadm-ready.service\n"+
		"66000 0 node is ready for pods\n"+
		"599500 0 first container kube-system/kube-proxy-2xkpf\n", "its boot:")
}

// TestFailed: a gate that stays closed, on a machine that is a container: its times count from its
// own start, and its kernel is another's.
func TestFailed(t *testing.T) {
	got := bootOf(t, manager(0, 0, 0, 500000000, 501000000, 0), []string{
		unit("gpuadm.service", "failed", 502000000, 0, 532000000, 502000000),
		unit("kubelet.service", "inactive", 0, 0, 0, 0),
		unit("gpuadm-ready.service", "inactive", 0, 0, 0, 0),
	})
	check.Equal(t, got, "from container\n"+
		"0 1000 systemd\n"+
		"2000 30000 gpuadm.service\n"+
		"32000 0 gpuadm.service has failed: the gate stays closed\n", "its boot:")
}

// TestRunAfterAFailedBoot: the boot unit has the run that it made itself, and no run of an operator
// after the unit had failed.
func TestRunAfterAFailedBoot(t *testing.T) {
	ofUnit := Run{
		ID:   "20261121T100016Z",
		Time: time.Date(2026, 11, 21, 10, 0, 16, 500e6, time.UTC),
		Took: "packages 40.1 s",
	}
	byHand := Run{
		ID:   "20261121T100516Z",
		Time: ofUnit.Time.Add(5 * time.Minute),
		Took: "runtime 1.2 s",
	}
	got := bootOf(t, manager(0, 0, 0, 2000182, 61000000, 2042364), []string{
		unit("gpuadm.service", "failed", 16000000, 0, 58100000, 16010000),
		unit("kubelet.service", "inactive", 0, 0, 0, 0),
		unit("gpuadm-ready.service", "inactive", 0, 0, 0, 0),
	}, ofUnit, byHand)
	check.Equal(t, got, "from kernel\n"+
		"0 2000 kernel\n"+
		"2000 58999 systemd\n"+
		"16000 42100 gpuadm.service run 20261121T100016Z: packages 40.1 s\n"+
		"58100 0 gpuadm.service has failed: the gate stays closed\n", "its boot:")
}

// TestNoSystemctl: what cannot be asked is an error.
func TestNoSystemctl(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- sim.toml --\nnow = 2026-11-21T10:10:00Z\n")))(t)
	_, err := Read(t.Context(), n, units, nil)
	var none *host.CommandError
	check.That(t, err != nil && (errors.As(err, &none) || strings.Contains(err.Error(), "systemctl")), "%v", err)
}
