// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestUnitOffers: in a managed pool of AKS, and on Bottlerocket, a unit offers the GPUs. The API server
// has no pod of it, and its log is the journal's. Source: Azure/AgentBaker, cse_config.sh.
func TestUnitOffers(t *testing.T) {
	const unit = "nvidia-device-plugin.service"
	machine := "-- sim.toml --\n[[unit]]\nname = \"" + unit + "\"\nenabled = \"enabled\"\n" +
		"-- usr/lib/systemd/system/" + unit + " --\n[Service]\nExecStart=/usr/bin/nvidia-device-plugin\n" +
		"[Install]\nWantedBy=multi-user.target\n"
	v := must.Get(simhost.New([]byte(machine)))(t).View()
	r := readyStage{session: new(Session)}
	err := r.explainNoOffer(t.Context(), v, &kube.Node{}, "the node offers no GPU")

	var wait trouble.Wait
	must.That(t, errors.As(err, &wait), "no wait: %v", err)
	try := strings.Join(wait.Try, "\n")
	hasLog := strings.Contains(try, "journalctl -u "+unit)
	check.That(t, hasLog && !strings.Contains(try, "kubectl"), "try %q", try)
}
