// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestDaemonSetBrings: the program comes to where the machine may execute it, which /run often is not, and secrets to where
// root alone may read them.
func TestDaemonSetBrings(t *testing.T) {
	for id, at := range map[string]string{"ubuntu": "/var/lib/gpuadm/", "cos": "/var/lib/google/"} {
		t.Run(id, func(t *testing.T) { daemonSetBrings(t, id, at) })
	}
}

func daemonSetBrings(t *testing.T, id, at string) {
	t.Helper()
	n, err := simhost.New([]byte("-- etc/os-release --\nNAME=x\nID=" + id + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := pod{account: account{withoutPolicy: true}, common: &common{env: env{
		getenv: func(name string) string {
			return map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}[name]
		},
		read: func(name string) ([]byte, error) { return []byte("content of " + name), nil },
	}}}
	argv, err := p.lay(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(argv[0], at) || len(argv) < 3 || argv[1] != "apply" || argv[2] != "--unattended" {
		t.Errorf("the machine runs %q", argv)
	}
	for name, mode := range map[string]fs.FileMode{argv[0]: 0o755, podHome: 0o700, podHome + "/token": 0o600, cloud.PodKubeconfig: 0o600, "/var/lib/gpuadm": 0o700} {
		if i, err := n.Stat(name); err != nil || i.Mode.Perm() != mode {
			t.Errorf("%s: %v %v, want %v", name, i.Mode, err, mode)
		}
	}
}
