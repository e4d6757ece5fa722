// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"os"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// What a package that is missing would bring is brought by the stage before: the check must not
// refuse the apply that would install it. Here persistenced was just turned on, or nvidia-utils was
// removed by hand.
func TestPartsDoNotRefuseTheirRepair(t *testing.T) {
	dir := t.TempDir()
	h := must.Get(local.Open(dir))(t)
	must.OK(t, os.MkdirAll(dir+"/usr/bin", 0o755))
	must.OK(t, os.WriteFile(dir+"/usr/bin/nvidia-smi", nil, 0o755))
	m := facts.Modules{Libraries: []facts.Library{{Name: "libnvidia-ml.so", Version: "580.95.05"}, {Name: "libcuda.so", Version: "580.95.05"}}}
	w := Parts("580.95.05", true, m, func(context.Context, host.View) (bool, error) { return false, nil })
	found, err := w.Look(context.Background(), h)
	if err != nil {
		return // deferred until its packages are installed
	}
	_, err = w.To(found)
	check.That(t, err == nil, "the plan is refused: %v", err)
}
