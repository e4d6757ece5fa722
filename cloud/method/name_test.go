// SPDX-License-Identifier: Apache-2.0

package method

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
)

func TestNameFits(t *testing.T) {
	for name, says := range map[string]string{
		"gpu-1": "", "gpu-1.example": "", "": "has no host name", "localhost": `called "localhost"`, "localhost.localdomain": "as every machine is",
		strings.Repeat("a", 63): "", strings.Repeat("a", 64): "64 characters", "Gpu": "is not a name for a node", "a..b": "is not a name for a node", "-a": "is not a name for a node",
	} {
		err := NameFits(name, spec.Spec{})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, not %q", name, err, says)
		}
	}
}
