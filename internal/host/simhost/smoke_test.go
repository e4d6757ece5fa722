// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package simhost_test

import (
	"context"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
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
[[command]]
argv = ["dpkg", "--print-architecture"]
stdout = "amd64\n"
[[command]]
argv = ["apt-get", "install"]
prefix = true
writes = { "/var/lib/x/new" = "made\n" }
-- etc/containerd/config.toml --
version = 2
-- etc/containerd/conf.d/ --
-- etc/l link=/etc/containerd --
`

func TestDaemon(t *testing.T) {
	n, err := simhost.New([]byte(containerd))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	want := func(what string) {
		t.Helper()
		if got := n.Units(); got != "containerd.service "+what+"\n" {
			t.Errorf("units are %q, want %q", got, what)
		}
	}
	want("enabled active fresh")
	if err := n.WriteFile("/etc/l/conf.d/x.toml", []byte("new\n"), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	want("enabled active stale")
	restart := host.UnitChange{Job: "restart"}
	if err := n.SetUnit(ctx, "containerd.service", restart); err != nil {
		t.Fatal(err)
	}
	want("enabled active fresh")
	if err := n.WriteFile("/etc/containerd/config.toml", []byte("broken\n"), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := n.SetUnit(ctx, "containerd.service", restart); err == nil {
		t.Error("the daemon took a broken file")
	}
	want("enabled failed")
	t.Log(n.Tree("/proc"))
}
