// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
)

// TestReadyRuntimeTry: what is advised where the engine lacks the handler is what brings it: on EKS's images nodeadm does at a boot,
// and our stage only looks.
func TestReadyRuntimeTry(t *testing.T) {
	lacks := func(context.Context, host.View, spec.Spec, facts.Facts) error {
		return errors.New("containerd has no handler nvidia")
	}
	for _, c := range []struct{ managed, runtime, want string }{
		{"", "", trouble.Command("apply runtime")}, {"eks", "", "reboot"}, {"eks", "owner = \"gpuadm\"\n", trouble.Command("apply runtime")},
	} {
		a := apiFixture(t, apiSpec+"[runtime]\n"+c.runtime)
		a.facts.Cloud.Managed, a.facts.Kubelet.Active = c.managed, "active"
		a.stages = []converge.Stage{a.with(NewReady(a.shared, lacks))}
		_, err := a.engine().Apply(a.ctx, a)
		if got := joins.Because(err); !strings.Contains(got, "try "+c.want) {
			t.Errorf("%+v: %v %s", c, err, got)
		}
	}
}
