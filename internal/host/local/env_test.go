// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestAskWith(t *testing.T) {
	h := must.Get(local.Open("/"))(t)
	out, err := h.AskWith(t.Context(), []string{"GPUADM_TEST=a b", "LC_ALL=C.UTF-8"}, "printenv", "GPUADM_TEST", "LC_ALL", "HOME")
	check.That(t, err == nil && string(out) == "a b\nC.UTF-8\n/root\n", "got %q, %v", out, err)
	out, err = h.Ask(t.Context(), "printenv", "GPUADM_TEST")
	check.That(t, err != nil, "it stays: %q", out)
}
