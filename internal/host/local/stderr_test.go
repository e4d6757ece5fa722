// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// What a failed command says goes into errors, and from there to the journal and the API server: it
// has no secrets.
func TestStderrIsMasked(t *testing.T) {
	h, err := local.Open("/")
	must.OK(t, err)
	_, err = h.Ask(t.Context(), "sh", "-c", `echo "E: cannot fetch https://robot:hunter2@mirror.example/x, token=hunter2" >&2; exit 1`)
	check.That(t, err != nil && !strings.Contains(err.Error(), "hunter2") && strings.Contains(err.Error(), "mirror.example/x"), "%v", err)
}
