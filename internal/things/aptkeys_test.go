// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestRefusedOfNoKey: a file that node.toml names as a key need not be one. A packet that is too
// long for a fingerprint is no key.
func TestRefusedOfNoKey(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	// A public key in the old format: four bytes of length, 65792, then the version.
	packet := []byte{0x9a, 0, 1, 1, 0, 4}
	packet = append(packet, make([]byte, 65791)...)

	why, fix := things.Refused(n, packet)
	check.Equal(t, why+fix, "", "a file that is no key is refused")
}
