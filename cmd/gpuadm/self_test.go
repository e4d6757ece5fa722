// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// TestSelf: a printed command names the program so that sudo finds it.
func TestSelf(t *testing.T) {
	const rhel = "Defaults    env_reset\n# Defaults secure_path = /opt\nDefaults    secure_path = /sbin:/bin:/usr/sbin:/usr/bin\n"
	const debian = `Defaults	secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"` + "\n"

	for _, c := range []struct{ argv0, file, sudoers, want string }{
		{"/usr/bin/gpuadm", "", rhel, "gpuadm"},
		{"/usr/bin/gpuadm", "", "", "gpuadm"},
		{"/usr/local/sbin/gpuadm", "", debian, "gpuadm"},
		{"/usr/local/sbin/gpuadm", "", "", "gpuadm"},
		{"/usr/local/sbin/gpuadm", "", rhel, "/usr/local/sbin/gpuadm"},
		{"./gpuadm", "", debian, "./gpuadm"},
		{"bin/gpuadm", "", rhel, "bin/gpuadm"},
		{"gpuadm", "/usr/bin/gpuadm", rhel, "gpuadm"},
		{"gpuadm", "/usr/local/sbin/gpuadm", rhel, "/usr/local/sbin/gpuadm"},
		{"/usr/bin/gpuadm-1.2", "", rhel, "/usr/bin/gpuadm-1.2"},
	} {
		check.Equal(t, self(c.argv0, c.file, c.sudoers), c.want, "%s: ", c.argv0)
	}
}

// TestSelfIsPrinted: each command that a plan prints names the program that runs.
func TestSelfIsPrinted(t *testing.T) {
	n := must.Get(simhost.New(demoNode))(t)
	ubuntu.Install(n)
	var out bytes.Buffer
	e := envOn(n, &out)
	e.typedAs = "./gpu adm"
	code := run(t.Context(), e, []string{"plan"})
	must.That(t, code == 0, "%d: %s", code, &out)
	check.Has(t, out.String(), "To apply: sudo './gpu adm' apply\n", "")
	check.That(t, !strings.Contains(out.String(), "gpuadm apply"), "%s", &out)
}

// TestSelfInAFolderOfInstallers: the advice to install the boot unit changes no part of the program's
// own path.
func TestSelfInAFolderOfInstallers(t *testing.T) {
	n := must.Get(simhost.New(demoNode))(t)
	var out bytes.Buffer
	c := &common{env: envOn(n, &out), rootDir: "image"}
	c.typedAs = "/opt/installer/gpuadm"
	atFirstBoot := converge.Line{Reason: converge.Reason{When: host.AtFirstBoot}}
	c.atFirstBoot(t.Context(), n, []converge.Line{atFirstBoot})

	said := strings.ReplaceAll(out.String(), glue, " ")
	check.Has(t, said, "To install it: /opt/installer/gpuadm apply --install --root image\n", "")
}
