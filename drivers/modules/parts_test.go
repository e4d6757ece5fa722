// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
	m := facts.Modules{Libraries: []facts.Library{{
		Name:    "libnvidia-ml.so",
		Version: "580.95.05",
	}, {Name: "libcuda.so", Version: "580.95.05"}}}
	pending := &Installed{Meets: func(context.Context, host.View) (bool, error) {
		return false, nil
	}}
	w := Parts("580.95.05", true, m, pending)
	found, err := w.Look(context.Background(), h)
	if err != nil {
		return // deferred until its packages are installed
	}
	_, err = w.To(found)
	check.That(t, err == nil, "the plan is refused: %v", err)
}

// TestPartRemovedFromItsPackage: the package is installed, and its library is gone. The reason is not
// that a package is missing, and the remedy unpacks the right one again.
func TestPartRemovedFromItsPackage(t *testing.T) {
	dir := t.TempDir()
	h := must.Get(local.Open(dir))(t)
	must.OK(t, os.MkdirAll(dir+"/usr/bin", 0o755))
	must.OK(t, os.WriteFile(dir+"/usr/bin/nvidia-smi", nil, 0o755))
	m := facts.Modules{Libraries: []facts.Library{{Name: "libcuda.so", Version: "580.95.05"}}}
	whole := &Installed{
		Meets: func(context.Context, host.View) (bool, error) { return true, nil },
		Listed: func(_ context.Context, _ host.View, files []string) (map[string]string, error) {
			return map[string]string{files[0]: "libnvidia-compute-580"}, nil
		},
		Reinstall: func(_ host.View, names []string) string { return "reinstall " + names[0] },
	}
	w := Parts("580.95.05", false, m, whole)
	_, err := w.To(must.Get(w.Look(t.Context(), h))(t))

	var refused *trouble.Error
	must.That(t, errors.As(err, &refused), "a library that is gone is no trouble: %v", err)
	check.Equal(t, refused.What, "cannot use driver 580.95.05: libnvidia-ml.so.580.95.05 was not found", "what:")
	check.List(t, refused.Because, []string{"libnvidia-ml.so.580.95.05 is a file of package libnvidia-compute-580, which is installed: it was removed outside gpuadm"}, "because:")
	check.List(t, refused.Try, []string{"reinstall libnvidia-compute-580"}, "try:")
}
