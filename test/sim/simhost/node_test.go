// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package simhost_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const containerd = `
-- sim.toml --
now = 2026-02-03T04:05:06Z
[[unit]]
name = "containerd.service"
enabled = "enabled"
active = "active"
reads = ["/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml"]
makes = ["/run/containerd/containerd.sock"]
refuses = "broken"
[[unit]]
name = "kubelet.service"
enabled = "disabled"
[[unit]]
name = "dbus.service"
enabled = "static"
active = "active"
[[unit]]
name = "gone.service"
load = "not-found"
[[command]]
argv = ["dpkg", "--print-architecture"]
stdout = "amd64\n"
[[command]]
argv = ["apt-get", "install"]
prefix = true
writes = { "/lib/x/new" = "made\n" }
removes = ["/etc/old", "/etc/none"]
[[command]]
argv = ["fails"]
exit = 5
stderr = "it fails\n"
-- lib link=usr/lib --
-- etc/containerd/config.toml --
version = 2
-- etc/containerd/conf.d/ --
-- etc/old --
-- etc/l link=/etc/containerd --
-- run/left --
`

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
		if got := line(n); got != want {
			t.Errorf("containerd is %q, want %q", got, want)
		}
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
	if err != nil || u.Started.Sub(i.Ctime) <= 10*time.Millisecond || u.Since <= 0 || u.Uptime < u.Since || u.PID == 0 {
		t.Errorf("%+v (%v)", u, err)
	}
	must.OK(t, n.Mkdir("/etc/systemd/system/containerd.service.d", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile("/etc/systemd/system/containerd.service.d/x.conf", nil, host.Attr{Mode: 0o644}))
	is("enabled active stale") // its drop-ins count as well
	must.OK(t, n.WriteFile("/etc/containerd/config.toml", []byte("broken\n"), host.Attr{Mode: 0o644}))
	err = n.SetUnit(t.Context(), "containerd.service", restart)
	if err == nil || err.Error() != "cannot restart containerd.service: the job ended as failed; journalctl -u containerd.service says why" {
		t.Error(err)
	}
	is("enabled failed")
	if _, err := n.Stat("/run/containerd/containerd.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a daemon that failed has its socket")
	}
	if err := n.SetUnit(t.Context(), "gone.service", restart); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestBoot(t *testing.T) {
	n := node(t, containerd)
	id := n.BootID()
	must.OK(t, n.SetUnit(t.Context(), "kubelet.service", host.UnitChange{File: "enable"}))
	must.OK(t, n.SetUnit(t.Context(), "containerd.service", host.UnitChange{File: "disable", Job: "stop"}))
	must.Get(n.Lock())(t)
	if _, err := n.Lock(); !errors.As(err, new(*host.Busy)) {
		t.Errorf("locked twice: %v", err)
	}
	before, _ := n.Stat("/etc/old")
	n.Reboot()
	want := "containerd.service disabled inactive\ndbus.service static active fresh\ngone.service not-found inactive\nkubelet.service enabled active fresh\n"
	if got := n.Units(); got != want {
		t.Errorf("units are\n%swant\n%s", got, want)
	}
	if data, err := n.ReadFile("/proc/sys/kernel/random/boot_id"); string(data) != n.BootID()+"\n" || n.BootID() == id {
		t.Errorf("boot ID %q (%v)", data, err)
	}
	if names, err := n.ReadDir("/run"); len(names) > 0 {
		t.Errorf("/run has %q (%v)", names, err)
	}
	if after, _ := n.Stat("/etc/old"); !after.Ctime.Equal(before.Ctime) {
		t.Error("a boot touched a file")
	}
	unlock := must.Get(n.Lock())(t)
	unlock()
}

func TestFirstBoot(t *testing.T) {
	n := node(t, "-- sim.toml --\nlive = false\n[[unit]]\nname = \"x.service\"\n")
	if n.Live() || n.Root() == "/" {
		t.Error("an image is live")
	}
	err := n.SetUnit(t.Context(), "x.service", host.UnitChange{File: "enable", Job: "start"})
	if later := (host.Later{}); !errors.As(err, &later) || later.Until != "first boot" {
		t.Error(err)
	}
	if _, err := n.Do(t.Context(), "x"); !errors.As(err, new(host.Later)) {
		t.Error(err)
	}
	n.FirstBoot()
	if got := n.Units(); got != "x.service enabled active fresh\n" || !n.Live() {
		t.Error(got)
	}
}

func TestCommands(t *testing.T) {
	n := node(t, containerd)
	v := n.View()
	if _, ok := v.(host.Host); ok {
		t.Error("a view can be turned back into a host")
	}
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
	if failed := (*host.CommandError)(nil); !errors.As(err, &failed) || failed.Code != 5 || err.Error() != "cannot run fails: exit status 5: it fails" {
		t.Error(err)
	}
	if _, err := v.Ask(t.Context(), "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}

	n.Install("dpkg", simhost.Program{
		Looks: func(argv []string) bool { return argv[1] == "-s" },
		Run: func(files *host.Files, argv []string) ([]byte, error) {
			if argv[1] == "-s" {
				return files.ReadFile("/var/lib/status")
			}
			return nil, files.WriteFile("/var/lib/status", []byte(argv[2]), host.Attr{Mode: 0o644})
		},
	})
	before := n.Touches()
	_, err = n.Do(t.Context(), "dpkg", "-i", "x.deb")
	must.OK(t, err)
	if out, err := v.Ask(t.Context(), "dpkg", "-s"); string(out) != "x.deb" || n.Touches() != before+1 {
		t.Errorf("%q (%v), %d touches", out, err, n.Touches()-before)
	}
}

func TestPower(t *testing.T) {
	n := node(t, containerd)
	n.CutAt(1)
	_, err := n.Do(t.Context(), "apt-get", "install", "x")
	must.OK(t, err)
	for what, err := range map[string]error{
		"job": n.SetUnit(t.Context(), "containerd.service", host.UnitChange{Job: "restart"}), "write": n.Append("/etc/x", nil), "remove": n.Remove("/etc/old"),
	} {
		if !errors.Is(err, simhost.ErrPower) {
			t.Errorf("%s after the cut: %v", what, err)
		}
	}
	if _, err := n.ReadFile("/etc/l"); !errors.Is(err, simhost.ErrPower) || !n.Off() {
		t.Errorf("read after the cut: %v", err)
	}
	if n.Touches() != 1 {
		t.Errorf("%d touches", n.Touches())
	}
	n.Boot(simhost.Random(7))
	if line(n) != "enabled active fresh" || n.Off() {
		t.Error(n.Units())
	}

	n.Fail(n.Touches(), syscall.ENOSPC)
	attr := host.Attr{Mode: 0o644}
	if err := n.WriteFile("/etc/x", nil, attr); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	must.OK(t, n.WriteFile("/etc/x", nil, attr))
}

func TestTree(t *testing.T) {
	n := node(t, `
-- etc/x mode=4755 owner=1:2 xattr=user.a=b --
text
-- etc/secret size=9 --
-- etc/raw base64 --
AAE=
-- etc/end nonl --
end
-- "etc/a b" chattr=i --
-- dev/nvidia0 type=char mode=0666 --
-- home/ mode=0700 owner=5:5 --
-- home/l link=../etc/x --
`)
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
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if _, err := n.ReadFile("/etc/secret"); err == nil || err.Error() != "cannot read /etc/secret: its content was not recorded" {
		t.Error(err)
	}
}

func TestBadArchives(t *testing.T) {
	for archive, want := range map[string]string{
		"-- sim.toml --\nlife = true\n":                                 "life",
		"-- sim.toml --\n[[unit]]\n":                                    "without name",
		"-- sim.toml --\n[[unit]]\nname=\"x.service\"\nrefuses=\"(\"\n": "refuses",
		"-- etc/x mode=9 --\n":                                          "marker mode=9",
		"-- etc/x what=9 --\n":                                          "no such marker",
		"-- etc/x --\n-- etc/x/y --\n":                                  "x is not a folder",
		"-- etc/x --\n-- etc/x --\n":                                    "twice",
		"-- lib link=usr/lib --\n-- lib/x --\n":                         "lib is not a folder",
		"-- etc/x base64 --\n%\n":                                       "base64",
		"-- proc/sys --\n":                                              "sys is not a folder",
	} {
		if _, err := simhost.New([]byte(archive)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", archive, err, want)
		}
	}
}

// TestTogether does all at once, for the race detector.
func TestTogether(t *testing.T) {
	n := node(t, containerd)
	var all sync.WaitGroup
	for i := range 4 {
		name := fmt.Sprintf("/etc/x%d", i)
		for _, do := range []func(){
			func() { n.WriteFile(name, []byte(name), host.Attr{Mode: 0o644}) },
			func() { n.Append(name, []byte(name)) },
			func() { n.ReadFile(name); n.ReadDir("/etc"); n.Stat(name) },
			func() { n.Unit(t.Context(), "containerd.service") },
			func() { n.SetUnit(t.Context(), "containerd.service", host.UnitChange{Job: "restart"}) },
			func() { n.Do(t.Context(), "apt-get", "install"); n.Ask(t.Context(), "apt-get", "install") },
			func() { n.Tree(); n.Units(); n.Touches(); n.Violations() },
			func() { n.Reboot() },
		} {
			all.Go(func() {
				for range 20 {
					do()
				}
			})
		}
	}
	all.Wait()
}

func FuzzNew(f *testing.F) {
	f.Add([]byte(containerd))
	f.Add([]byte("-- \"a b\" link=x --\n-- c/ ro mount --\n-- d xattr=a=0sYQ== type=fifo ctime=2026-01-02T03:04:05Z --\n"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		n, err := simhost.New(archive)
		if err != nil {
			return
		}
		n.Tree()
		n.Reboot()
		n.Units()
	})
}
