// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestCertificateOfTomorrow: a certificate that is not valid yet is a matter of this machine's clock
// or of the CA's, and not one of credentials that are lost.
func TestCertificateOfTomorrow(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	k := facts.Kubelet{
		Kubeconfig: "/etc/kubernetes/kubelet.conf",
		Begins:     n.Now().Add(24 * time.Hour),
		Expired:    n.Now().Add(48 * time.Hour),
	}
	list := refusedCertificate(n, k)
	must.That(t, len(list) == 1, "the refusals are %v", list)
	check.Has(t, list[0].What, "this machine's clock is behind, or that of the CA", "the refusal is")
	check.That(t, list[0].Fix == "timedatectl" && list[0].Advice != "", "the advice is %+v", list[0])
}
