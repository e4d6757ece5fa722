// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
)

const simulation = `NOTE: This is only a simulation!
Reading package lists...
Remv nvidia-kernel-open [580.1-1] [nvidia-driver:amd64 ]
Inst libc6 [2.36-9+deb12u8] (2.36-9+deb12u13 Debian:12.12/oldstable, Debian-Security:12/oldstable-security [amd64]) []
Inst libfoo:i386 (1.0-1 test:127.0.0.1 [i386])
Inst huge (1 test:127.0.0.1 [amd64])
Inst local [1.0] (0.9 local-deb [amd64])
Purg gone [2]
Conf libc6 (2.36-9+deb12u13 Debian:12.12/oldstable [amd64])
`

func TestSimulation(t *testing.T) {
	t.Parallel()
	want := []packages.Move{{Name: "nvidia-kernel-open", Version: ""}, {Name: "libc6", Version: "2.36-9+deb12u13"}, {Name: "libfoo:i386", Version: "1.0-1"}, {Name: "huge", Version: "1"}, {Name: "local", Version: "0.9"}, {Name: "gone", Version: ""}}
	if got := parseSimulation(simulation, "amd64"); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzSimulation(f *testing.F) {
	f.Add(simulation)
	f.Add(strings.Repeat("Inst a (1 b)\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseSimulation(out, "amd64") {
				if m.Name == "" && !strings.Contains(out, "Inst :amd64") && !strings.Contains(out, " :amd64") {
					t.Errorf("a move of nothing: %+v", m)
				}
			}
		})
	})
}
