// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"context"
	"encoding/json"
	"fmt"
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

const secretNode = `
-- sim.toml --
now = 2026-02-03T04:05:06.5Z
[[unit]]
name = "containerd.service"
enabled = "enabled"
active = "active"
[[command]]
argv = ["containerd", "config", "dump"]
stdout = """
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]
  username = "hunter2"
  password = "hunter2"
[plugins.x]
  a = 1
"""
[[command]]
argv = ["cat", "/etc/shadow"]
stdout = "hunter2"
[[command]]
argv = ["dpkg", "-s", "x"]
exit = 1
stderr = "no such package, token=hunter2"
-- etc/os-release chattr=i --
ID=debian
-- etc/shadow mode=0600 --
root:hunter2
-- etc/containerd/config.toml mode=0600 owner=1:2 xattr=user.secret=hunter2 xattr=security.selinux=0sYTpi --
version = 2
[plugins."cri".registry.configs."a".auth]
  auth = "hunter2"
  user = 'hunter2'
  many = [
    "hunter2",
    "hunter2" ] # hunter2
[plugins."cri".cgroups]
  SystemdCgroup = true
[host."x".header]
  X-My-Thing = ["hunter2"]
[other]
  Authorization = ["Basic hunter2hunter2"] # hunter2
  registry_token = """
hunter2
"""
  # password = "hunter2"
  api-key = 5 # hunter2
  inline = { username = "me", password = "hunter2" }
  proxy = "http://me:hunter2@proxy:3128/x"
  argv = ["--token", "x", "--password=hunter2", "kept"]
  keep = "this"
-- etc/docker/daemon.json nonl --
{"auths":{"r.example":{"auth":"hunter2","identitytoken":"hunter2"}},"n":1,
 "tokens": [
   "hunter2",
   "a\"hunter2" ],
 "debug": true, "log-driver": "keep"}
-- etc/systemd/system/containerd.service.d/x.conf --
[Service]
Environment="REGISTRY_TOKEN=hunter2" "PATH=/bin"
Environment=MY_SECRET=hunter2
ExecStart=/usr/bin/x --password hunter2 --keep
ExecStart=/usr/bin/x --bootstrap-token=hunter2
-- etc/yum.repos.d/x.repo --
[keep]
baseurl=https://me:hunter2@mirror.example/x
password=hunter2, hunter2
-- var/lib/kubelet/config.yaml --
cgroupDriver: systemd
staticPodURLHeader:
  Authorization:
  - "hunter2"
  X-Token: |
    hunter2
    hunter2
authentication:
  webhook:
    enabled: true
keep: this
-- proc/cmdline --
BOOT_IMAGE=/vmlinuz token=hunter2 nouveau.modeset=0
-- var/lib/dpkg/status --
Package: nvidia-driver-580
Status: install ok installed
Version: 580.95.05
Description: hunter2
 more hunter2

Package: my-secret-tool
Version: 1

Package: containerd
Version: 1.7.24
-- etc/binary.key base64 --
AAECAw==
-- usr/share/keyrings/x.gpg base64 --
AP/+AQ==
-- etc/link link=containerd/config.toml --
-- "etc/with space" --
-- run/containerd/containerd.sock type=socket mode=0660 --
-- etc/crlf.conf base64 --
YQ0KYg==
`

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
