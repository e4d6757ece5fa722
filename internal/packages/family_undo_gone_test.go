// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// Undo ends where a part that was removed cannot be had again.
func TestUndoAfterAPartThatIsGone(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.strange()
	m.apply(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.undo()
}
