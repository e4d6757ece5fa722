// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// fewerGPUs compares the GPUs on the PCI bus with what is known of how many there should be. Each
// source is of this machine; no table of instance types is asked.
func fewerGPUs(m *Machine) []Finding {
	found := len(m.GPUs())
	for _, expected := range []func(*Machine) (count int, by string){byOperator, byKubelet, byLabel} {
		count, by := expected(m)
		if count <= found {
			continue
		}
		return []Finding{{
			What:  fmt.Sprintf("%d of %d GPUs are on the PCI bus: %s", found, count, by),
			Count: count - found,
		}}
	}

	return nil
}

// byOperator is what the spec says.
func byOperator(m *Machine) (count int, by string) {
	count = m.spec.Driver.GPUCount
	return count, fmt.Sprintf("gpu_count in [driver] is %d", count)
}

// byKubelet counts the GPUs that the device plugin registered last, which kubelet writes to a file:
// a plugin of NVIDIA's names devices by UUID, and shares of a GPU by UUID::N. The file is of the
// last registration, so that it has the GPUs of the last good run until the plugin registers again.
// A GPU is gone if the driver does not list its UUID.
// Source: kubernetes, pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go (RegisteredDevices).
func byKubelet(m *Machine) (count int, by string) {
	file := path.Join(m.Basics().Kubelet.Folder(), "device-plugins/kubelet_internal_checkpoint")
	text, _ := m.text(file)
	var checkpoint struct {
		Data struct {
			RegisteredDevices map[string][]string
		}
	}
	if json.Unmarshal([]byte(text), &checkpoint) != nil {
		return 0, "" // kubelet writes a new one
	}

	var gpus []string
	for _, name := range checkpoint.Data.RegisteredDevices[gpuResource] {
		uuid, _, _ := strings.Cut(name, "::")
		if strings.HasPrefix(uuid, "GPU-") && !slices.Contains(gpus, uuid) {
			gpus = append(gpus, uuid)
		}
	}

	return len(gpus), fmt.Sprintf("kubelet's device plugin registered %d before (%s)", len(gpus), file)
}

// byLabel reads the label of GPU feature discovery. With partitions the label may count those.
func byLabel(m *Machine) (count int, by string) {
	registered, ok := m.Registration()
	if !ok || registered.node == nil {
		return 0, ""
	}
	labels := registered.node.Labels
	count, err := strconv.Atoi(labels["nvidia.com/gpu.count"])
	if err != nil || strings.Contains(labels["nvidia.com/gpu.product"], "MIG") {
		return 0, ""
	}
	return count, fmt.Sprintf("the Node's label nvidia.com/gpu.count is %d", count)
}
