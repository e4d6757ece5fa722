// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRemark: the condition of a node whose node.toml cannot be used is true, and its message says by
// which spec. The next apply that uses node.toml takes the remark out.
func TestRemark(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.shared.Remark = "node.toml cannot be used, so this is by the last applied spec"
	a.apply()
	const ready = "True GPUsReady 2 × H100 80GB, driver 580.95.05"
	check.Equal(t, a.condition(), ready+"; "+a.shared.Remark+", boot "+a.mark(), "the condition")

	a.shared.Remark = ""
	a.shared.forget()
	a.apply()
	check.Equal(t, a.condition(), ready+", boot "+a.mark(), "after the fix: the condition")
}

// TestSpecOfUndo: an undo asks the cluster by the spec that was applied last if node.toml cannot be
// used.
func TestSpecOfUndo(t *testing.T) {
	a := apiFixture(t, apiSpec)
	e := a.engine()
	e.Own = true
	must.Get(e.Apply(t.Context(), a))(t)
	must.That(t, machineSpec(a).Node.Kubeconfig == apiAccount, "no spec is kept")

	must.OK(t, a.WriteFile(specHome+"/node.toml", []byte("[[["), host.Attr{Mode: 0o644}))
	check.Equal(t, machineSpec(a).Node.Kubeconfig, apiAccount, "the account")
	must.OK(t, converge.ForgetSpec(a))
	check.Equal(t, machineSpec(a).Node.Kubeconfig, "", "without a last applied spec: the account")
}

// TestUnreadableSpec: a node.toml, a node.d or a file in it that is there and cannot be read is none
// that the operator has taken away: the spec that was applied last counts.
func TestUnreadableSpec(t *testing.T) {
	for _, name := range []string{"node.toml", "node.d", "node.d/10.toml"} {
		a := apiFixture(t, apiSpec)
		e := a.engine()
		e.Own = true
		must.Get(e.Apply(t.Context(), a))(t)
		must.OK(t, a.WriteFile(specHome+"/node.toml", []byte("format = 1\n"), host.Attr{Mode: 0o644}))
		must.That(t, machineSpec(a).Node.Kubeconfig == "", "node.toml is not read")

		inLoop := path.Join(specHome, name)
		must.OK(t, a.PutLink(inLoop, inLoop))
		check.Equal(t, machineSpec(a).Node.Kubeconfig, apiAccount, "%s cannot be read: the account", name)
	}
}

// TestSpecWithoutMain: without node.toml the files of node.d are no spec, for undo as for apply: the
// spec that was applied last counts.
func TestSpecWithoutMain(t *testing.T) {
	a := apiFixture(t, apiSpec)
	e := a.engine()
	e.Own = true
	must.Get(e.Apply(t.Context(), a))(t)
	must.OK(t, a.Mkdir(specHome+"/node.d", host.Attr{Mode: 0o755}))
	must.OK(t, a.WriteFile(specHome+"/node.d/10.toml", []byte("format = 1\n"), host.Attr{Mode: 0o644}))

	check.Equal(t, machineSpec(a).Node.Kubeconfig, apiAccount, "the account")
}
