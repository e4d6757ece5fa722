// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Sweep is converge.Sweeper's.
func (f *FileThing) Sweep(h host.Host) error { return sweepBeside(h, f.name) }

// sweepBeside clears away what a killed gpuadm left in the folder in which a file is made: where links lead to, too.
func sweepBeside(h host.Host, name string) error {
	s, ok := h.(interface{ Sweep(folder string) error })
	if !ok {
		return nil
	}
	for _, at := range []string{name, resolved(h, name)} {
		if err := s.Sweep(path.Dir(at)); err != nil && !missing(err) {
			return err
		}
	}
	return nil
}

func resolved(v host.View, name string) string {
	if to, err := v.Resolve(name); err == nil {
		return to
	}
	return name
}
