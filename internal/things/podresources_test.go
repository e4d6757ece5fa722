// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// field is one field of a message that holds bytes.
func field(n protowire.Number, parts ...string) string {
	b := protowire.AppendTag(nil, n, protowire.BytesType)
	return string(protowire.AppendString(b, strings.Join(parts, "")))
}

// given is kubelet's entry of a pod with one container and devices, as api.proto of podresources/v1 has it; cpu_ids (3) are numbers.
func given(namespace, name, resource string, ids ...string) string {
	devices := field(1, resource)
	for _, id := range ids {
		devices += field(2, id)
	}
	return field(1, field(1, name), field(2, namespace), field(3, field(1, "main"), field(2, devices), "\x18\x07"))
}

// TestPodDevices: pods that have a device count also without a process; those that have ended do not; other vendors' devices never.
func TestPodDevices(t *testing.T) {
	kubelet := given("ml", "train-0", "nvidia.com/gpu", "GPU-1::0", "GPU-1::3") + given("ml", "pulls", "nvidia.com/mig-1g.10gb", "MIG-2") +
		given("ml", "done", "nvidia.com/gpu", "GPU-3") + given("ml", "again", "nvidia.com/gpu", "GPU-4") + given("net", "nic", "example.com/nic", "NIC-1")
	pod := func(namespace, name string) string {
		return field(1, field(1, "id"), field(2, field(1, name), field(2, "uid"), field(3, namespace)))
	}
	engine := map[byte]string{0: pod("ml", "train-0") + pod("ml", "again"), 1: pod("ml", "done") + pod("ml", "again")}
	boot := func(files string) *simhost.Node {
		n, err := simhost.New([]byte("-- sim.toml --\n" + files))
		if err != nil {
			t.Fatal(err)
		}
		n.Daemon(podResources, func(method string, _ []byte) ([]byte, error) {
			if method != "/v1.PodResourcesLister/List" {
				t.Errorf("kubelet is asked for %s", method)
			}
			return []byte(kubelet), nil
		})
		return n
	}
	const socket = "-- var/lib/kubelet/pod-resources/kubelet.sock --\n"
	all := []PodDevice{{"ml/train-0", "GPU-1"}, {"ml/train-0", "GPU-1"}, {"ml/pulls", "MIG-2"}, {"ml/done", "GPU-3"}, {"ml/again", "GPU-4"}}
	n := boot(socket)
	if got, err := PodDevices(t.Context(), n); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("without an engine that answers: %v, %v", got, err)
	}
	n.Daemon("/run/crio/crio.sock", func(_ string, request []byte) ([]byte, error) { return []byte(engine[request[len(request)-1]]), nil })
	if got, err := PodDevices(t.Context(), n); err != nil || !reflect.DeepEqual(got, append(all[:3:3], all[4])) {
		t.Errorf("with one: %v, %v", got, err)
	}
	if got, err := PodDevices(t.Context(), boot("")); got != nil || err != nil {
		t.Errorf("without a socket: %v, %v", got, err)
	}
	n.Daemon(podResources, func(string, []byte) ([]byte, error) { return []byte{0x0a, 0x7f}, nil })
	if _, err := PodDevices(t.Context(), n); err == nil {
		t.Error("a torn answer is taken")
	}
	n.Daemon(podResources, func(string, []byte) ([]byte, error) { return nil, host.Later{Until: "never"} })
	if _, err := PodDevices(t.Context(), n); err == nil {
		t.Error("a kubelet that fails counts as one with no pods")
	}
}
