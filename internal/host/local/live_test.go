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
	h, err := local.Open("/")
	must.OK(t, err)
	const folder = "/etc/systemd/system/"
	write := func(name, text string) {
		t.Helper()
		must.OK(t, h.WriteFile(folder+name, []byte(text), host.Attr{Mode: 0o644}))
	}

	set := func(name, file, job string) error {
		return h.SetUnit(t.Context(), name, host.UnitChange{File: file, Job: job})
	}
	unit := func(name string) host.Unit {
		t.Helper()
		u, err := h.Unit(t.Context(), name)
		must.OK(t, err)
		return u
	}

	says := func(err error, want string) {
		t.Helper()
		check.That(t, err != nil && strings.Contains(err.Error(), want), "%v, want %s", err, want)
	}

	if u := unit("gpuadm-x.service"); u.Load != "not-found" || u.Active != "inactive" || u.PID != 0 {
		t.Errorf("a unit that is not there: %+v", u)
	}
	says(set("gpuadm-x.service", "enable", ""), "cannot enable gpuadm-x.service")
	err = set("gpuadm-x.service", "", "start")
	says(err, "cannot start gpuadm-x.service: Unit gpuadm-x.service not found")
	check.That(t, errors.Is(err, fs.ErrNotExist), "a unit that is not there is not fs.ErrNotExist")

	write("gpuadm-x.service", "[Service]\nExecStart=/bin/sleep 1000\nExecReload=/bin/true\n[Install]\nWantedBy=multi-user.target\n")
	before := time.Now()
	must.OK(t, set("gpuadm-x.service", "enable", "start"))
	u := unit("gpuadm-x.service")
	check.That(t, u.Load == "loaded" && u.Enabled == "enabled" && u.Active == "active" && u.PID != 0 && len(u.Files) == 1 && u.Files[0] == folder+"gpuadm-x.service" && !u.Outdated,
		"enabled and started: %+v", u)
	check.That(t, !u.Started.Before(before.Add(-time.Millisecond)) && !u.Started.After(time.Now()) && u.Since > 0 && u.Uptime >= u.Since && u.Uptime-u.Since <= time.Minute,
		"times: %+v", u)
	i, err := h.Stat(u.Files[0])
	must.OK(t, err)
	gap := u.Started.Sub(i.Ctime)
	check.That(t, gap >= 0 && gap <= 30*time.Second, "started %v after its file changed", gap)

	must.OK(t, h.Mkdir(folder+"gpuadm-x.service.d", host.Attr{Mode: 0o755}))
	write("gpuadm-x.service.d/a.conf", "[Service]\nEnvironment=A=1\n")
	if u := unit("gpuadm-x.service"); !u.Outdated || len(u.Files) != 2 {
		t.Errorf("a new drop-in: %+v", u)
	}
	must.OK(t, set("gpuadm-x.service", "", "restart"))
	again := unit("gpuadm-x.service")
	check.That(t, !again.Outdated && len(again.Files) == 2 && again.PID != u.PID && again.Since > u.Since, "restarted: %+v", again)
	write("gpuadm-x.service.d/a.conf", "[Service]\nEnvironment=A=2\n")
	u = unit("gpuadm-x.service")
	check.That(t, u.Outdated && len(u.Files) == 2, "a changed drop-in: %+v", u)
	must.OK(t, set("gpuadm-x.service", "", "restart"))
	if out, err := h.Ask(t.Context(), "systemctl", "show", "-p", "Environment", "gpuadm-x.service"); err != nil || string(out) != "Environment=A=2\n" {
		t.Errorf("%s (%v)", out, err)
	}
	for range 8 { // more than StartLimitBurst
		must.OK(t, set("gpuadm-x.service", "", "restart"))
	}
	must.OK(t, set("gpuadm-x.service", "", "reload"))
	must.OK(t, set("gpuadm-x.service", "disable", "stop"))
	u = unit("gpuadm-x.service")
	check.That(t, u.Enabled == "disabled" && u.Active == "inactive" && u.PID == 0 && u.Started.IsZero(), "disabled and stopped: %+v", u)
	must.OK(t, set("gpuadm-x.service", "", "stop"))
	says(set("gpuadm-x.service", "", "reload"), "cannot reload gpuadm-x.service")
	says(set("gpuadm-x.service", "mask", ""), "cannot mask gpuadm-x.service")

	write("gpuadm-fails.service", "[Service]\nType=exec\nExecStart=/none\n")
	for range 8 { // more than StartLimitBurst
		says(set("gpuadm-fails.service", "", "restart"), "journalctl -u gpuadm-fails.service says why")
	}
	says(set("gpuadm-fails.service", "enable", ""), "no [Install] section")
	write("gpuadm-fails.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	must.OK(t, set("gpuadm-fails.service", "", "start")) // fixed, and its many failures do not count
	must.OK(t, set("gpuadm-fails.service", "", "stop"))

	write("gpuadm-never.service", "[Unit]\nConditionPathExists=/none\n[Service]\nExecStart=/bin/sleep 1000\n")
	says(set("gpuadm-never.service", "", "start"), "a condition in its unit file does not hold")
	write("gpuadm-hang.service", "[Service]\nType=notify\nTimeoutStartSec=1\nExecStart=/bin/sleep 1000\n")
	says(set("gpuadm-hang.service", "", "start"), "its result is timeout")
	write("gpuadm-needs.service", "[Unit]\nRequires=gpuadm-once.service\nAfter=gpuadm-once.service\n[Service]\nExecStart=/bin/sleep 1000\n")
	write("gpuadm-once.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
	says(set("gpuadm-needs.service", "", "start"), "a unit it needs did not start")
	write("gpuadm-once.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")
	must.OK(t, set("gpuadm-once.service", "", "start"))
	u = unit("gpuadm-once.service")
	check.That(t, u.Active == "active" && u.PID == 0 && !u.Started.IsZero() && u.Since != 0, "a oneshot that remains: %+v", u)

	if _, err := h.Do(t.Context(), "systemctl", "daemon-reexec"); err != nil { // as an upgrade of systemd does: it drops its connections
		t.Error(err)
	}
	u = unit("gpuadm-once.service")
	check.That(t, u.Active == "active", "after daemon-reexec: %+v", u)
	u = unit("dbus.socket")
	check.That(t, u.Active == "active" && !u.Started.IsZero(), "a socket: %+v", u)
	must.OK(t, set("containerd.service", "mask", ""))
	u = unit("containerd.service")
	check.That(t, u.Load == "masked" && u.Enabled == "masked", "masked: %+v", u)
	must.OK(t, set("containerd.service", "unmask", "restart"))
	t.Logf("containerd: %+v", unit("containerd.service"))

	unlock, err := h.Lock()
	must.OK(t, err)
	other, err := local.Open("/")
	must.OK(t, err)
	_, err = other.Lock()
	check.That(t, errors.As(err, new(*host.Busy)), "locked twice: %v", err)
	unlock()

	r := view.Record(h)
	r.ReadFile("/etc/os-release")
	r.Unit(t.Context(), "containerd.service")
	r.ReadDir("/sys/bus/pci/devices")
	r.Ask(t.Context(), "uname", "-r")
	t.Logf("%s", r.Txtar())
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
