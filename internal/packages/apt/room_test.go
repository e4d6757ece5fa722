// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

func TestFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		usr, archives     uint64
		install, download int64
		ok                bool
	}{{5e6, 5e6, 2e6, 2e6, true}, {5e6, 5e6, 3e6, 3e6, false}, {5e6, 9e6, 3e6, 3e6, true}, {5e6, 9e6, 6e6, 1, false}, {9e6, 5e6, 1, 6e6, false}, {5e6, 5e6, -1e6, 5e6, true}} {
		if err := fits(c.usr, c.archives, c.install, c.download); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{name: "huge", version: "1", fields: "Installed-Size: 99999999999\n"})
	m.update()
	contains(t, m.refuse(func(s *packages.Set) []converge.Want {
		return []converge.Want{packages.Want(s, "huge", packages.State{Version: "1"}, "")}
	}), "the disk is full", "they need 10240000", "make room")
}
