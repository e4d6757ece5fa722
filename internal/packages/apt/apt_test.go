// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// crowded is a machine with more processors than its memory has room for compilers.
type crowded struct{ *machine }

func (c crowded) ReadFile(name string) ([]byte, error) {
	switch name {
	case "/proc/cpuinfo":
		return []byte(strings.Repeat("processor\t: 0\n", 64)), nil
	case "/proc/meminfo":
		return []byte("MemAvailable:    1500000 kB\n"), nil
	}
	return c.machine.ReadFile(name)
}

// A package's script that builds modules learns from nproc(1) how many compilers to run, in an installation and in a repair:
// NVIDIA's dkms.conf asks that, and goes by the processors alone.
func TestScriptsRunFewCompilers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{name: "module-dkms", version: "1", files: map[string]string{"/DEBIAN/postinst": "#!/bin/sh\nnproc >>/opt/jobs\ntest -e /opt/fine\n"}})
	m.update()
	c := crowded{m}
	a := apt{wait: 2 * time.Second}
	if err := a.get(t.Context(), c, "install", "module-dkms"); err == nil {
		t.Fatal("the script did not fail")
	}
	m.write("/opt/fine", "")
	must.OK(t, a.Repair(t.Context(), c))
	if jobs, err := os.ReadFile(m.dir + "/opt/jobs"); err != nil || string(jobs) != "1\n1\n" {
		t.Errorf("compilers at once: %q, %v", jobs, err)
	}
}
