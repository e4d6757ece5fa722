// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestBootWaits: kubelet starts after the boot's apply. With an open gate it does not wait for GPUs
// whose state cannot be read: Karpenter gives a node 15 minutes to register. It waits for what
// another program does, such as one that writes kubelet's configuration.
func TestBootWaits(t *testing.T) {
	silent := &trouble.Unknown{
		What: "GPU 0",
		Err:  &trouble.Error{What: "the driver does not answer", Passing: true},
	}
	later := trouble.Wait{For: "kubeadm has not run"}
	for _, c := range []struct {
		gate  string
		err   error
		waits time.Duration
	}{
		{"closed", silent, WaitLimit},
		{"", silent, WaitLimit},
		{"open", silent, 0},
		{"open", later, WaitLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := must.Get(simhost.New([]byte("-- etc/os-release --\nID=debian\n")))(t)
			engine := &converge.Engine{Spec: spec.Spec{Join: spec.Join{Gate: c.gate}}}
			r := &Run{Engine: engine, Host: n, Say: func(Event) {}}
			began := time.Now()
			err := r.Boot(t.Context(), func(context.Context) error { return c.err })

			var gaveUp *GaveUp
			must.That(t, errors.As(err, &gaveUp), "gate %q: %v", c.gate, err)
			check.Equal(t, gaveUp.Open, c.gate == "open", "gate %q: kubelet starts", c.gate)
			took := time.Since(began)
			const attempts = time.Minute
			isSo := took >= c.waits && took <= c.waits+attempts
			check.That(t, isSo, "gate %q, %v: the boot gives up after %v, want %v", c.gate, c.err, took, c.waits)
		})
	}
}
