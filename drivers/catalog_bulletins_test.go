// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestVulnerable: the newest bulletin is named, and the version that fixes all. The rows are of
// bulletins 5703, 5747 and 5821.
func TestVulnerable(t *testing.T) {
	for version, want := range map[string]string{
		"580.82.07":  "driver 580.82.07 has known vulnerabilities: NVIDIA's security bulletin 5821 of 2026-05 and 2 older ones; 580.159.03 of branch 580 fixes them",
		"580.142":    "driver 580.142 has known vulnerabilities: NVIDIA's security bulletin 5821 of 2026-05; 580.159.03 of branch 580 fixes them",
		"590.44.01":  "driver 590.44.01 has known vulnerabilities: NVIDIA's security bulletin 5747 of 2026-01; 590.48.01 of branch 590 fixes them",
		"580.159.03": "",
		"580.178.04": "",
		"620.10.01":  "",
		"":           "",
	} {
		check.Equal(t, Vulnerable(version), want, "%s: ", version)
	}
}
