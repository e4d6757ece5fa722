// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// TestAdvised: a refusal about packages says what to enable, one about a lock does not.
func TestAdvised(t *testing.T) {
	s := NewSet().Advising([]Lack{{Name: "the repository epel", Try: "dnf install epel-release"}, {Name: "x", Try: "y", Enabled: true}})
	refused := &trouble.Error{What: "cannot install dkms", Try: []string{"dnf makecache"}}
	said := (*trouble.Error)(nil)
	if err := s.advised(refused); !errors.As(err, &said) || !slices.Equal(said.Try, []string{"enable the repository epel, which the driver's packages depend on: dnf install epel-release", "dnf makecache"}) || len(refused.Try) != 1 {
		t.Errorf("%+v", said)
	}
	busy := &trouble.Error{What: "locked", Err: &Locked{errors.New("x"), "y"}}
	if err := s.advised(busy); err != error(busy) {
		t.Errorf("%v", err)
	}
}
