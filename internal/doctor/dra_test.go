// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// goodCheckpoint is a checkpoint of the DRA driver in two versions. The checksums were made by
// kubelet's own package, k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum.
const goodCheckpoint = `{"checksum":1013052749,"v1":{"preparedClaims":{"a1":{"status":{}}}},` +
	`"v2":{"checksum":2092721413,"preparedClaims":{"a1":{"checkpointState":"PrepareCompleted","name":"one-gpu","namespace":"default"}}}}`

// TestDRACheckpoint: a checkpoint whose checksum is not that of its words is damaged, in either
// version; one of a form that is not known is not judged.
func TestDRACheckpoint(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"good":               {"", "", ""},
		"no JSON":            {`"v2":`, `"v2"`, "it is not JSON"},
		"v1 changed":         {`{"status":{}}`, `{"status":{"x":1}}`, "the checksum of its v1 is wrong"},
		"v2 changed":         {"one-gpu", "two-gpu", "the checksum of its v2 is wrong"},
		"checksum changed":   {"2092721413", "2092721414", "the checksum of its v2 is wrong"},
		"a newer form of v1": {`{"checksum":1013052749,`, `{"bootID":"x","checksum":1,`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkpointFault([]byte(strings.Replace(goodCheckpoint, c.from, c.to, 1)))
			check.That(t, got == c.want, "%q, want %q", got, c.want)
		})
	}
}

// TestDRAPluginLoops: the pod of a DRA driver that ends at each start is a fault, with its damaged
// checkpoint as the cause; a good checkpoint is not blamed.
func TestDRAPluginLoops(t *testing.T) {
	damaged := strings.Replace(goodCheckpoint, "one-gpu", "two-gpu", 1)
	for name, c := range map[string]struct {
		text   string
		blamed bool
	}{
		"damaged": {damaged, true},
		"good":    {goodCheckpoint, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := incident.Joined(t, true)
			w.Do(incident.All(t)["dra-checkpoint-corrupt"])
			w.Put("var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json nonl", c.text+"\n")
			r := examine(t, w.Node())
			check.That(t, codes(r) == "KUB-022", "root causes %v", r.Causes)
			what := r.Causes[0].Found[0].What
			check.That(t, strings.Contains(what, "checksum of its v2 is wrong") == c.blamed, "%s", what)
			isRemoved := strings.Contains(strings.Join(r.Causes[0].Commands, "; "), "sudo rm ")
			check.That(t, isRemoved == c.blamed, "%v", r.Causes[0].Commands)
		})
	}
}

// TestBothContainersOfDRALoop: where both containers of a DRA driver's pod end again and again,
// doctor names the container that offers the GPUs, and has no part left out.
func TestBothContainersOfDRALoop(t *testing.T) {
	w := incident.Joined(t, true)
	var loops []any
	for _, name := range []string{"compute-domains", "gpus"} {
		loops = append(loops, kubesim.Object{
			"name":  name,
			"state": kubesim.Object{"waiting": kubesim.Object{"reason": "CrashLoopBackOff"}},
		})
	}
	pod := incident.Pod("nvidia-dra-driver-gpu-kubelet-plugin-x2x4k")
	pod["status"] = kubesim.Object{"containerStatuses": loops}
	w.Server.AddPod(pod)

	r := examine(t, w.Node())
	must.That(t, codes(r) == "KUB-022", "root causes %v", r.Causes)
	check.Has(t, r.Causes[0].Found[0].What, "the container gpus of the pod", "it says")
	check.That(t, !strings.Contains(r.Causes[0].Fix, "computeDomains"), "%s", r.Causes[0].Fix)
}

// TestComputeDomainsWithoutDriver: the container for compute domains ends where no driver answers,
// so that the driver is the one root cause.
func TestComputeDomainsWithoutDriver(t *testing.T) {
	w := incident.Joined(t, true)
	w.Do(w.Named("driver-silent"))
	w.Do(w.Named("compute-domain-driver-needs-a-newer-driver"))
	check.Equal(t, codes(examine(t, w.Node())), "DRV-015", "root causes")
}
