// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// planted is what no recording may hold.
const planted = "hunter2"

//go:embed testdata/secrets.txtar
var secretNode string

// look reads much of the machine and returns what it saw.
func look(t *testing.T, v host.View) string {
	t.Helper()
	var b strings.Builder
	say := func(what string, answers ...any) {
		s := must.Get(json.Marshal(answers))(t)
		fmt.Fprintf(&b, "%s %s\n", what, s)
	}

	ctx := context.Background()
	for _, name := range []string{
		"/etc/os-release", "/etc/shadow", "/etc/link", "/etc/docker/daemon.json", "/etc/systemd/system/containerd.service.d/x.conf",
		"/etc/yum.repos.d/x.repo", "/var/lib/kubelet/config.yaml", "/proc/cmdline", "/var/lib/dpkg/status", "/etc/binary.key",
		"/usr/share/keyrings/x.gpg", "/etc/none", "/none/none", "/etc/with space", "/run/containerd/containerd.sock", "/etc/crlf.conf",
	} {
		data, err := v.ReadFile(name)
		say("read "+name, string(data), err != nil)
		i, err := v.Lstat(name)
		say("lstat "+name, i.Mode, i.UID, i.Ctime, i.Chattr, err != nil)
		i, err = v.Stat(name)
		say("stat "+name, i.Mode, i.UID, i.Ctime, err != nil)
	}

	for _, name := range []string{"/etc", "/run", "/etc/os-release"} {
		names, err := v.ReadDir(name)
		say("list "+name, names, err != nil)
	}

	u, err := v.Unit(ctx, "containerd.service")
	say("unit", u.Enabled, u.Active, u.Started, u.Load, err != nil)
	for _, argv := range []string{"containerd config dump", "cat /etc/shadow", "dpkg -s x", "none"} {
		out, err := v.Ask(ctx, strings.Fields(argv)...)
		say(argv, string(out), fmt.Sprint(err))
	}

	return b.String()
}

func TestRecord(t *testing.T) {
	n := must.Get(simhost.New([]byte(secretNode)))(t)
	r := view.Record(n.View())
	seen := look(t, r)
	must.That(t, strings.Contains(seen, planted), "the secret is not in what was read")
	archive := r.Txtar()
	for i, line := range strings.Split(string(archive), "\n") {
		check.That(t, !strings.Contains(line, planted), "line %d holds the secret: %s", i+1, line)
	}
	for _, keep := range []string{
		"ID=debian", "SystemdCgroup = true", `keep = "this"`, "keep: this", "cgroupDriver: systemd", "enabled: true", "nouveau.modeset=0",
		"[keep]", "580.95.05", "AP/+AQ==", `'/none'`, "Package: containerd", `"--password=(masked)", "kept"]`, `"REGISTRY_TOKEN=(masked)" "PATH=/bin"`,
	} {
		check.That(t, strings.Contains(string(archive), keep), "%s was not recorded", keep)
	}

	for _, drop := range []string{"my-secret-tool", "AAECAw", "user.secret"} {
		check.That(t, !strings.Contains(string(archive), drop), "%s was recorded", drop)
	}

	// Simulated again, it looks the same, but for what was left out.
	again, err := simhost.New(archive)
	must.That(t, err == nil, "%v\n%s", err, archive)
	r = view.Record(again.View())
	look(t, r)
	twice := r.Txtar()
	third := must.Get(simhost.New(twice))(t)
	one, two := look(t, again), look(t, third)
	check.That(t, one == two, "a recording of the recording differs:\n%s\n%s", one, two)
	a, b := strings.Split(seen, "\n"), strings.Split(look(t, again), "\n")
	for i := range a {
		if a[i] != b[i] && !strings.Contains(a[i], planted) && !strings.HasPrefix(a[i], "read /etc/binary") && !strings.HasPrefix(a[i], "read /etc/crlf") &&
			!strings.HasPrefix(a[i], "read /etc/with") {
			t.Errorf("looks differ:\n%s\n%s", a[i], b[i])
		}
	}

	if t.Failed() {
		t.Logf("%s", archive)
	}
}

// TestRecordNoBinary: mask reads text only, so of a file that is not text only the size is recorded,
// though its name is listed as safe.
func TestRecordNoBinary(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- sim.toml --\nlive = true\n-- etc/os-release base64 --\naHVudGVyMgD/\n")))(t)
	r := view.Record(n.View())
	data := must.Get(r.ReadFile("/etc/os-release"))(t)
	must.That(t, strings.Contains(string(data), planted), "the secret is not in what was read: %q", data)
	archive := string(r.Txtar())
	check.That(t, !strings.Contains(archive, planted), "the secret was recorded:\n%s", archive)
	check.That(t, strings.Contains(archive, "-- etc/os-release size=9 "), "the size was not recorded:\n%s", archive)
}

// TestRecordedTools: what DKMS's build and a boot need stays in the recording, also where its name has
// nothing of the driver's.
func TestRecordedTools(t *testing.T) {
	var status strings.Builder
	tools := []string{
		"gcc", "gcc-13", "make", "libc6", "systemd", "kmod", "initramfs-tools", "dkms", "containerd",
	}
	for _, name := range append(tools, "makepasswd", "libc6-dev", "my-tool") {
		status.WriteString("Package: " + name + "\nStatus: install ok installed\nVersion: 1\n\n")
	}
	n := must.Get(simhost.New([]byte("-- var/lib/dpkg/status --\n" + status.String())))(t)
	r := view.Record(n.View())
	must.Get(r.ReadFile("/var/lib/dpkg/status"))(t)

	archive := string(r.Txtar())
	for _, name := range tools {
		check.That(t, strings.Contains(archive, "Package: "+name+"\n"), "%s was not recorded", name)
	}
	for _, name := range []string{"makepasswd", "libc6-dev", "my-tool"} {
		check.That(t, !strings.Contains(archive, "Package: "+name+"\n"), "%s was recorded", name)
	}
}

// TestRecordLinks: a link is a link again in the machine that is simulated, whatever it says, also if
// its text cannot be read. The kernel appends a word to what the link of a deleted program says.
func TestRecordLinks(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- sim.toml --\nlive = true\n-- etc/plain link=/a --\n")))(t)
	links := map[string]string{
		"/etc/deleted": "/usr/bin/containerd (deleted)",
		"/etc/encoded": "0sLw==",
		"/etc/plain":   "/a",
	}
	for name, to := range links {
		must.OK(t, n.Symlink(name, to))
	}

	r := view.Record(unreadableLink{n.View()})
	for name := range links {
		_, _ = r.Readlink(name)
	}
	must.OK(t, n.Symlink("/etc/unreadable", "/b"))
	_, _ = r.Readlink("/etc/unreadable")

	archive := r.Txtar()
	again, err := simhost.New(archive)
	must.That(t, err == nil, "%v\n%s", err, archive)
	for name, want := range links {
		to, err := again.Readlink(name)
		check.That(t, to == want, "%s says %q, %v, want %q\n%s", name, to, err, want, archive)
	}
	i, err := again.Lstat("/etc/unreadable")
	check.That(t, err == nil && i.Mode&fs.ModeSymlink != 0, "%v, %v\n%s", i.Mode, err, archive)
}

// unreadableLink is a machine with a link that only its owner may read, as in /proc.
type unreadableLink struct{ host.View }

func (v unreadableLink) Readlink(name string) (string, error) {
	if name == "/etc/unreadable" {
		return "", host.Failed("read link", name, fs.ErrPermission)
	}
	return v.View.Readlink(name)
}
