// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestEKSMaxPods(t *testing.T) {
	// Published by EKS: templates/shared/runtime/eni-max-pods.txt has 737 for p4d and 58 for
	// g4dn.4xlarge's smaller sister g5.xlarge.
	for _, c := range []struct{ enis, ips, pods int }{{15, 50, 737}, {4, 15, 58}, {2, 50, 100}, {0, 0, 110}, {1, 1, 110}} {
		f := startFacts(c.enis, c.ips)
		got := maxPods(*f.Cluster)
		check.That(t, got == c.pods, "%d ENIs of %d addresses: %d pods, not %d", c.enis, c.ips, got, c.pods)
	}
}

func startFacts(enis, ips int) facts.Facts {
	f := facts.Facts{Cluster: &instance.Cluster{}}
	f.Cluster.ENIs, f.Cluster.IPv4PerENI = enis, ips
	return f
}
