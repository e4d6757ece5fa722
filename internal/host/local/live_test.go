// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLive works on the units of the machine it runs on, so it runs only in a machine that is
// thrown away after it: copy the compiled test into it and set GPUADM_TEST_LIVE=1.
func TestLive(t *testing.T) {
	if os.Getenv("GPUADM_TEST_LIVE") == "" {
		t.Skip("changes the machine it runs on: set GPUADM_TEST_LIVE=1 in one to throw away")
	}
	l := live{t, must.Get(local.Open("/"))(t)}

	l.missingUnit()
	l.startsUnit()
	l.restartsForDropIn()
	l.stopsUnit()
	l.failingUnits()
	l.oneshot()
	l.survivesReexec()
	l.masksUnit()
	l.locksOnce()

	r := view.Record(l.host)
	r.ReadFile("/etc/os-release")
	r.Unit(t.Context(), "containerd.service")
	r.ReadDir("/sys/bus/pci/devices")
	r.Ask(t.Context(), "uname", "-r")
	t.Logf("%s", r.Txtar())
}

// live is a machine with systemd, and the test that changes it.
type live struct {
	*testing.T
	host host.Host
}

const (
	unitFolder = "/etc/systemd/system/"
	ownUnit    = "gpuadm-x.service"
	moreStarts = 8 // than StartLimitBurst allows
)

func (l live) write(name string, lines ...string) {
	l.Helper()
	text := strings.Join(lines, "\n") + "\n"
	must.OK(l, l.host.WriteFile(unitFolder+name, []byte(text), host.Attr{Mode: 0o644}))
}

func (l live) set(name, file, job string) error {
	return l.host.SetUnit(l.Context(), name, host.UnitChange{File: file, Job: job})
}

func (l live) unit(name string) host.Unit {
	l.Helper()
	return must.Get(l.host.Unit(l.Context(), name))(l.T)
}

// refuses wants an error that says this.
func (l live) refuses(err error, want string) {
	l.Helper()
	check.That(l, err != nil && strings.Contains(err.Error(), want), "%v, want %s", err, want)
}

func (l live) missingUnit() {
	u := l.unit(ownUnit)
	check.That(l, u.Load == "not-found" && u.Active == "inactive" && u.PID == 0, "a unit that is not there: %+v", u)
	l.refuses(l.set(ownUnit, "enable", ""), "cannot enable gpuadm-x.service")

	err := l.set(ownUnit, "", "start")
	l.refuses(err, "cannot start gpuadm-x.service: Unit gpuadm-x.service not found")
	check.That(l, errors.Is(err, fs.ErrNotExist), "a unit that is not there is not fs.ErrNotExist")
}

func (l live) startsUnit() {
	l.write(ownUnit,
		"[Service]",
		"ExecStart=/bin/sleep 1000",
		"ExecReload=/bin/true",
		"[Install]",
		"WantedBy=multi-user.target",
	)
	before := time.Now()
	must.OK(l, l.set(ownUnit, "enable", "start"))

	u := l.unit(ownUnit)
	runs := u.Load == "loaded" && u.Enabled == "enabled" && u.Active == "active" && u.PID != 0
	check.That(l, runs && !u.Outdated, "enabled and started: %+v", u)
	check.List(l, u.Files, []string{unitFolder + ownUnit}, "files:")

	startedNow := !u.Started.Before(before.Add(-time.Millisecond)) && !u.Started.After(time.Now())
	sinceBoot := u.Since > 0 && u.Uptime >= u.Since && u.Uptime-u.Since <= time.Minute
	check.That(l, startedNow && sinceBoot, "times: %+v", u)

	file := must.Get(l.host.Stat(unitFolder + ownUnit))(l.T)
	gap := u.Started.Sub(file.Ctime)
	check.That(l, gap >= 0 && gap <= 30*time.Second, "started %v after its file changed", gap)
}

func (l live) restartsForDropIn() {
	const dropIn = ownUnit + ".d/a.conf"
	first := l.unit(ownUnit)
	must.OK(l, l.host.Mkdir(unitFolder+ownUnit+".d", host.Attr{Mode: 0o755}))
	l.write(dropIn, "[Service]", "Environment=A=1")
	u := l.unit(ownUnit)
	check.That(l, u.Outdated && len(u.Files) == 2, "a new drop-in: %+v", u)

	must.OK(l, l.set(ownUnit, "", "restart"))
	u = l.unit(ownUnit)
	isNew := u.PID != first.PID && u.Since > first.Since
	check.That(l, isNew && !u.Outdated && len(u.Files) == 2, "restarted: %+v", u)

	l.write(dropIn, "[Service]", "Environment=A=2")
	u = l.unit(ownUnit)
	check.That(l, u.Outdated && len(u.Files) == 2, "a changed drop-in: %+v", u)

	must.OK(l, l.set(ownUnit, "", "restart"))
	out, err := l.host.Ask(l.Context(), "systemctl", "show", "-p", "Environment", ownUnit)
	check.That(l, err == nil && string(out) == "Environment=A=2\n", "%s (%v)", out, err)
	for range moreStarts {
		must.OK(l, l.set(ownUnit, "", "restart"))
	}
}

func (l live) stopsUnit() {
	must.OK(l, l.set(ownUnit, "", "reload"))
	must.OK(l, l.set(ownUnit, "disable", "stop"))
	u := l.unit(ownUnit)
	isStopped := u.Active == "inactive" && u.PID == 0 && u.Started.IsZero()
	check.That(l, isStopped && u.Enabled == "disabled", "disabled and stopped: %+v", u)

	must.OK(l, l.set(ownUnit, "", "stop"))
	l.refuses(l.set(ownUnit, "", "reload"), "cannot reload gpuadm-x.service")
	l.refuses(l.set(ownUnit, "mask", ""), "cannot mask gpuadm-x.service")
}

func (l live) failingUnits() {
	const fails = "gpuadm-fails.service"
	l.write(fails, "[Service]", "Type=exec", "ExecStart=/none")
	for range moreStarts {
		l.refuses(l.set(fails, "", "restart"), "journalctl -u gpuadm-fails.service says why")
	}
	l.refuses(l.set(fails, "enable", ""), "no [Install] section")
	l.write(fails, "[Service]", "Type=exec", "ExecStart=/bin/sleep 1000")
	must.OK(l, l.set(fails, "", "start")) // fixed, and its many failures do not count
	must.OK(l, l.set(fails, "", "stop"))

	const never = "gpuadm-never.service"
	l.write(never, "[Unit]", "ConditionPathExists=/none", "[Service]", "ExecStart=/bin/sleep 1000")
	l.refuses(l.set(never, "", "start"), "a condition in its unit file does not hold")

	const hangs = "gpuadm-hang.service"
	l.write(hangs, "[Service]", "Type=notify", "TimeoutStartSec=1", "ExecStart=/bin/sleep 1000")
	l.refuses(l.set(hangs, "", "start"), "its result is timeout")
}

const onceUnit = "gpuadm-once.service"

func (l live) oneshot() {
	const needs = "gpuadm-needs.service"
	l.write(needs, "[Unit]", "Requires="+onceUnit, "After="+onceUnit, "[Service]", "ExecStart=/bin/sleep 1000")
	l.write(onceUnit, "[Service]", "Type=oneshot", "ExecStart=/bin/false")
	l.refuses(l.set(needs, "", "start"), "a unit it needs did not start")

	l.write(onceUnit, "[Service]", "Type=oneshot", "RemainAfterExit=yes", "ExecStart=/bin/true")
	must.OK(l, l.set(onceUnit, "", "start"))
	u := l.unit(onceUnit)
	remains := u.Active == "active" && u.PID == 0 && !u.Started.IsZero() && u.Since != 0
	check.That(l, remains, "a oneshot that remains: %+v", u)
}

// survivesReexec has systemd drop its connections, as an upgrade of systemd does.
func (l live) survivesReexec() {
	_, err := l.host.Do(l.Context(), "systemctl", "daemon-reexec")
	check.OK(l, err)
	u := l.unit(onceUnit)
	check.That(l, u.Active == "active", "after daemon-reexec: %+v", u)
	u = l.unit("dbus.socket")
	check.That(l, u.Active == "active" && !u.Started.IsZero(), "a socket: %+v", u)
}

func (l live) masksUnit() {
	const containerd = "containerd.service"
	must.OK(l, l.set(containerd, "mask", ""))
	u := l.unit(containerd)
	check.That(l, u.Load == "masked" && u.Enabled == "masked", "masked: %+v", u)
	must.OK(l, l.set(containerd, "unmask", "restart"))
	l.Logf("containerd: %+v", l.unit(containerd))
}

func (l live) locksOnce() {
	unlock := must.Get(l.host.Lock())(l.T)
	defer unlock()
	other := must.Get(local.Open("/"))(l.T)
	_, err := other.Lock()
	check.That(l, errors.As(err, new(*host.Busy)), "locked twice: %v", err)
}

func TestScratchIsPrivateAndGone(t *testing.T) {
	l := must.Get(local.Open("/"))(t)
	out, err := l.AskAbout(t.Context(), map[string][]byte{"/a/b": []byte("at " + host.Scratch + "/a")}, "sh", "-c", "cat "+host.Scratch+"/a/b; stat -c %a "+host.Scratch+"; echo "+host.Scratch)
	must.OK(t, err)
	lines := strings.Split(string(out), "\n")
	_, err = l.Lstat(lines[1])
	check.That(t, strings.HasPrefix(lines[0], "at /") && strings.HasSuffix(lines[0], "/a700") && err != nil, "said %q, and then %v", out, err)
	_, err = l.AskAbout(t.Context(), map[string][]byte{"/../../x": nil}, "true")
	check.That(t, err != nil, "a name led out of the folder")
}
