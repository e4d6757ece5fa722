// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRejectedFlag: of a kubelet that ends for a flag which it does not know, doctor names the flag and
// each file that has it, and has it taken out where no other program writes the file.
func TestRejectedFlag(t *testing.T) {
	const file = "/var/lib/kubelet/kubeadm-flags.env"
	w := incident.Joined(t, true)
	w.Do(w.Named("kubelet-has-a-flag-that-is-gone"))
	r := examine(t, w.Node())
	must.That(t, codes(r) == "KUB-014", "root causes %v", r.Causes)
	cause := r.Causes[0]
	check.Has(t, cause.Found[0].What, "rejects --container-runtime=docker on its command line; the flag stands in "+file, "it says")
	check.List(t, cause.Commands, []string{
		"sudo sed -i 's| *--container-runtime=docker||' " + file + " && sudo systemctl daemon-reload && sudo systemctl restart kubelet",
	}, "to type")
}
