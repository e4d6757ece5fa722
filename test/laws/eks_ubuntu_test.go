// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestUbuntuOnEKS: bootstrap.sh of Canonical's image makes containerd's file of a template at each
// bootstrap. Before it has run gpuadm edits the template alone, so that the file has the handler from
// its first moment; a bootstrap after an edit of both loses nothing; undo gives both back.
func TestUbuntuOnEKS(t *testing.T) {
	const (
		template = "/usr/local/share/eks/containerd-config.toml"
		config   = "/etc/containerd/config.toml"
		handler  = `runtimes.nvidia.options]`
	)
	n := must.Get(simhost.New(must.Get(os.ReadFile("../hosts/owned/eks-ubuntu.txtar"))(t)))(t)
	read := func(name string) string { return string(must.Get(n.ReadFile(name))(t)) }
	// bootstrap is what the script does: sed, and a restart of containerd.
	bootstrap := func() {
		text := strings.ReplaceAll(read(template), "SANDBOX_IMAGE", "602401143452.dkr.ecr/eks/pause:3.5")
		must.OK(t, n.Mkdir("/etc/containerd", host.Attr{Mode: 0o755}))
		must.OK(t, n.WriteFile(config, []byte(text), host.Attr{Mode: 0o644}))
		must.OK(t, n.SetUnit(t.Context(), "containerd.service", host.UnitChange{Job: "restart"}))
	}

	e := engine(t, "[runtime]\n")
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
		return st.Name != "runtime"
	})
	first := read(template)
	apply := func() []converge.Change { return must.Get(e.Apply(t.Context(), n))(t).Made }

	made := apply()
	must.That(t, len(made) == 1 && made[0].Name == template, "made %+v", made)
	check.Has(t, read(template), handler, "the template")
	check.Has(t, read(template), `sandbox_image = "SANDBOX_IMAGE"`, "the template")

	bootstrap()
	check.Has(t, read(config), handler, "what bootstrap.sh has made")
	check.That(t, len(apply()) == 0, "after a bootstrap something is to do")

	_, err := e.Undo(t.Context(), n, "all", nil)
	must.OK(t, err)
	check.Equal(t, read(template), first, "the template after undo")
}
