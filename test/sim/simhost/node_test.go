// SPDX-License-Identifier: Apache-2.0

package simhost_test

import (
	_ "embed"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host/files"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

//go:embed testdata/containerd.txtar
var containerd string

func node(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte(archive)))(t)
	return n
}

// line is what Units says of containerd.
func line(n *simhost.Node) string {
	line, _, _ := strings.Cut(n.Units(), "\n")
	return strings.TrimPrefix(line, "containerd.service ")
}

func TestDaemon(t *testing.T) {
	n := node(t, containerd)
	is := func(want string) {
		t.Helper()
		check.Equal(t, line(n), want, "containerd is")
	}

	restart := host.UnitChange{Job: "restart"}
	is("enabled active fresh")
	must.OK(t, n.WriteFile("/etc/l/conf.d/x.toml", []byte("new\n"), host.Attr{Mode: 0o644}))
	is("enabled active stale")
	i := must.Get(n.Stat("/etc/containerd/conf.d/x.toml"))(t)
	if u, _ := n.Unit(t.Context(), "containerd.service"); !u.Started.Before(i.Ctime) {
		t.Errorf("a file written later is older: %v, %v", u.Started, i.Ctime)
	}
	must.OK(t, n.SetUnit(t.Context(), "containerd.service", restart))
	is("enabled active fresh")
	u, err := n.Unit(t.Context(), "containerd.service")
	check.That(t, err == nil && u.Started.Sub(i.Ctime) > 10*time.Millisecond && u.Since > 0 && u.Uptime >= u.Since && u.PID != 0, "%+v (%v)", u, err)
	must.OK(t, n.Mkdir("/etc/systemd/system/containerd.service.d", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile("/etc/systemd/system/containerd.service.d/x.conf", nil, host.Attr{Mode: 0o644}))
	is("enabled active stale") // its drop-ins count as well
	must.OK(t, n.WriteFile("/etc/containerd/config.toml", []byte("broken\n"), host.Attr{Mode: 0o644}))
	err = n.SetUnit(t.Context(), "containerd.service", restart)
	check.That(t, err != nil && err.Error() == "cannot restart containerd.service: the job ended as failed; journalctl -u containerd.service says why", "%v", err)
	is("enabled failed")
	_, err = n.Stat("/run/containerd/containerd.sock")
	check.That(t, errors.Is(err, fs.ErrNotExist), "a daemon that failed has its socket")
	err = n.SetUnit(t.Context(), "gone.service", restart)
	check.That(t, errors.Is(err, fs.ErrNotExist), "%v", err)
}

func TestBoot(t *testing.T) {
	n := node(t, containerd)
	id := n.BootID()
	must.OK(t, n.SetUnit(t.Context(), "kubelet.service", host.UnitChange{File: "enable"}))
	must.OK(t, n.SetUnit(t.Context(), "containerd.service", host.UnitChange{
		File: "disable",
		Job:  "stop",
	}))
	must.Get(n.Lock())(t)
	_, err := n.Lock()
	check.That(t, errors.As(err, new(*host.Busy)), "locked twice: %v", err)
	before, _ := n.Stat("/etc/old")
	n.Reboot()
	want := "containerd.service disabled inactive\ndbus.service static active fresh\ngone.service not-found inactive\nkubelet.service enabled active fresh\n"
	got := n.Units()
	check.That(t, got == want, "units are\n%swant\n%s", got, want)
	data, err := n.ReadFile("/proc/sys/kernel/random/boot_id")
	check.That(t, string(data) == n.BootID()+"\n" && n.BootID() != id, "boot ID %q (%v)", data, err)
	names, err := n.ReadDir("/run")
	check.That(t, len(names) == 0, "/run has %q (%v)", names, err)
	after, _ := n.Stat("/etc/old")
	check.That(t, after.Ctime.Equal(before.Ctime), "a boot touched a file")
	unlock := must.Get(n.Lock())(t)
	unlock()
}

func TestFirstBoot(t *testing.T) {
	n := node(t, "-- sim.toml --\nlive = false\n[[unit]]\nname = \"x.service\"\n")
	check.That(t, !n.Live() && n.Root() != "/", "an image is live")
	err := n.SetUnit(t.Context(), "x.service", host.UnitChange{File: "enable", Job: "start"})
	later := (host.Later{})
	check.That(t, errors.As(err, &later) && later.Until == "first boot", "%v", err)
	_, err = n.Do(t.Context(), "x")
	check.That(t, errors.As(err, new(host.Later)), "%v", err)
	n.FirstBoot()
	got := n.Units()
	check.That(t, got == "x.service enabled active fresh\n" && n.Live(), "%v", got)
}

func TestCommands(t *testing.T) {
	n := node(t, containerd)
	v := n.View()
	_, ok := v.(host.Host)
	check.That(t, !ok, "a view can be turned back into a host")
	if out, err := v.Ask(t.Context(), "dpkg", "--print-architecture"); string(out) != "amd64\n" {
		t.Errorf("%q (%v)", out, err)
	}
	if _, err := v.Ask(t.Context(), "apt-get", "install", "x"); err == nil || len(n.Violations()) != 1 || n.Violations()[0] != "apt-get install x" {
		t.Errorf("%v, violations %q", err, n.Violations())
	}
	if _, err := v.Stat("/usr/lib/x/new"); err == nil || n.Touches() != 0 {
		t.Error("asking changed something")
	}
	if _, err := n.Do(t.Context(), "apt-get", "install", "x"); err != nil || n.Touches() != 1 {
		t.Errorf("%v, %d touches", err, n.Touches())
	}
	n.Boot(simhost.LoseAll)
	if data, err := v.ReadFile("/usr/lib/x/new"); string(data) != "made\n" {
		t.Errorf("%q (%v)", data, err)
	}
	if _, err := v.Stat("/etc/old"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the file was not removed:", err)
	}
	_, err := v.Ask(t.Context(), "fails")
	failed := (*host.CommandError)(nil)
	check.That(t, errors.As(err, &failed) && failed.Code == 5 && err.Error() == "cannot run fails: exit status 5: it fails", "%v", err)
	if _, err := v.Ask(t.Context(), "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}

	n.Install("dpkg", simhost.Program{
		Looks: func(argv []string) bool { return argv[1] == "-s" },
		Run: func(files *files.Files, argv []string) ([]byte, error) {
			if argv[1] == "-s" {
				return files.ReadFile("/var/lib/status")
			}
			return nil, files.WriteFile("/var/lib/status", []byte(argv[2]), host.Attr{Mode: 0o644})
		},
	})
	before := n.Touches()
	_, err = n.Do(t.Context(), "dpkg", "-i", "x.deb")
	must.OK(t, err)
	out, err := v.Ask(t.Context(), "dpkg", "-s")
	check.That(t, string(out) == "x.deb" && n.Touches() == before+1, "%q (%v), %d touches", out, err, n.Touches()-before)
}

func TestPower(t *testing.T) {
	n := node(t, containerd)
	n.CutAt(1)
	_, err := n.Do(t.Context(), "apt-get", "install", "x")
	must.OK(t, err)
	for what, err := range map[string]error{
		"job": n.SetUnit(t.Context(), "containerd.service", host.UnitChange{Job: "restart"}), "write": n.Append("/etc/x", nil), "remove": n.Remove("/etc/old"),
	} {
		check.That(t, errors.Is(err, simhost.ErrPower), "%s after the cut: %v", what, err)
	}

	_, err = n.ReadFile("/etc/l")
	check.That(t, errors.Is(err, simhost.ErrPower) && n.Off(), "read after the cut: %v", err)
	check.That(t, n.Touches() == 1, "%d touches", n.Touches())
	n.Boot(simhost.Random(7))
	check.That(t, line(n) == "enabled active fresh" && !n.Off(), "%v", n.Units())

	n.Fail(n.Touches(), syscall.ENOSPC)
	attr := host.Attr{Mode: 0o644}
	err = n.WriteFile("/etc/x", nil, attr)
	check.That(t, errors.Is(err, syscall.ENOSPC), "%v", err)
	must.OK(t, n.WriteFile("/etc/x", nil, attr))
}

//go:embed testdata/tree.txtar
var treeFiles string

func TestTree(t *testing.T) {
	n := node(t, treeFiles)
	want := `/dev/nvidia0 char 0666 0:0
/etc folder 0755 0:0
/etc/a b file 0644 0:0 ""
/etc/end file 0644 0:0 "end"
/etc/raw file 0644 0:0 "\x00\x01"
/etc/secret file 0644 0:0 9 bytes
/etc/x file 4755 1:2 "text\n" user.a="b"
/home folder 0700 5:5
/home/l link 0777 0:0 -> ../etc/x
`
	var got strings.Builder
	for l := range strings.Lines(n.Tree("/proc", "/usr", "/var", "/run", "/sys", "/tmp", "/root")) {
		if l != "/ folder 0755 0:0\n" && l != "/dev folder 0755 0:0\n" {
			got.WriteString(l)
		}
	}

	check.That(t, got.String() == want, "got\n%swant\n%s", got.String(), want)
	_, err := n.ReadFile("/etc/secret")
	check.That(t, err != nil && err.Error() == "cannot read /etc/secret: its content was not recorded", "%v", err)
}
