// SPDX-License-Identifier: Apache-2.0

package nearest

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestOf(t *testing.T) {
	known := []string{"version", "gpu_count", "source", "1g.10gb", "1g.20gb"}
	for name, want := range map[string]string{
		"versoin": "version", "Version": "version", "gpucount": "gpu_count", "GPU-Count": "gpu_count", "sorce": "source",
		"1g.10g": "1g.10gb", "2g.20gb": "1g.20gb", "colour": "", "": "", strings.Repeat("version", 10): "",
	} {
		check.Equal(t, Of(name, known), want, "%q:", name)
	}
}
