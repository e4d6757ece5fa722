// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"reflect"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/things"
)

// losesModules reports whether the new folder would lack modules for a kernel for which the old one
// has some: they did not build of the driver that is asked for now. Nodes that compile nothing live
// by the old ones.
func (m Mirror) losesModules(h host.View, next packages.Lock) bool {
	old, _ := packages.ReadLock(h, m.Dir) // an empty one where the machine has no mirror yet
	for _, failed := range next.Failed {
		for _, built := range old.Modules {
			if built.Kernel == failed.Kernel {
				return true
			}
		}
	}

	return false
}

// learn writes failures into the lock of the folder that is there.
func (m Mirror) learn(
	h host.Host, signer things.Signer, failed []packages.SharedModules,
) (lock packages.Lock, changed bool, err error) {
	lock, err = packages.ReadLock(h, m.Dir)
	if err != nil {
		return lock, false, err
	}
	before := lock.Failed
	lock.Failed = failed
	lock.Failed = stillFailed(before, lock)
	if reflect.DeepEqual(before, lock.Failed) {
		return lock, false, nil
	}
	return lock, true, m.writeLock(h, signer, m.Dir, lock)
}

// stillFailed adds a lock's failures to those of an earlier run whose modules it has not
// tried again.
func stillFailed(before []packages.SharedModules, lock packages.Lock) []packages.SharedModules {
	all := slices.Clone(lock.Failed)
	for _, m := range before {
		same := func(other packages.SharedModules) bool { return m.SameBuild(other) }
		tried := slices.ContainsFunc(lock.Failed, same)
		for _, built := range lock.Modules {
			tried = tried || same(built)
		}
		if !tried {
			all = append(all, m)
		}
	}

	sorting.By(all, packages.SharedModules.Compare)
	return all
}
