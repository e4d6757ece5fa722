// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// damagedCheckpoint returns the file in which a DRA driver keeps the claims that it has prepared,
// if it is damaged, and what is wrong with it. The driver ends at each start then:
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1100.
func (m *Machine) damagedCheckpoint() (file, fault string) {
	for _, driver := range []string{"gpu.nvidia.com", "compute-domain.nvidia.com"} {
		file = path.Join(m.Basics().Kubelet.Folder(), "plugins", driver, "checkpoint.json")
		text, known := m.text(file)
		if !known || !m.has(file) {
			continue
		}
		fault = checkpointFault([]byte(text))
		if fault != "" {
			return file, fault
		}
	}
	return "", ""
}

// checkpointFault says what is wrong with a checkpoint; "" if nothing is, or if its form is not
// known. The checksum at the top is that of v1, which has none of its own; later versions have
// theirs inside.
// Sources: cmd/gpu-kubelet-plugin/checkpoint.go in
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu (VerifyChecksumV1, VerifyChecksumV2);
// its issue 1100.
func checkpointFault(text []byte) string {
	var parts map[string]json.RawMessage
	if json.Unmarshal(text, &parts) != nil {
		return "it is not JSON"
	}

	known := map[string]bool{"checksum": true, "version": true, "v1": true, "v2": true, "v3": true}
	isKnown := len(parts["checksum"]) > 0
	for part := range parts {
		isKnown = isKnown && known[part]
	}
	if isKnown && !sumIs(parts["checksum"], ofV1(parts["v1"])) {
		return "the checksum of its v1 is wrong"
	}
	for _, version := range []string{"v2", "v3"} {
		sum, summed := withoutSum(parts[version])
		if summed != nil && !sumIs(sum, summed) {
			return "the checksum of its " + version + " is wrong"
		}
	}

	return ""
}

// ofV1 is the text that the checksum at the top is of.
func ofV1(v1 json.RawMessage) []byte {
	if len(v1) == 0 {
		return []byte(`{"checksum":0}`)
	}
	return fmt.Appendf(nil, `{"checksum":0,"v1":%s}`, v1)
}

// withoutSum is the checksum in a version, and the text that it is of, in which it is 0; nil where
// the version does not begin with one.
func withoutSum(version json.RawMessage) (sum, of []byte) {
	const before = `{"checksum":`
	rest, found := bytes.CutPrefix(version, []byte(before))
	end := bytes.IndexAny(rest, ",}")
	if !found || end < 0 {
		return nil, nil
	}
	return rest[:end], fmt.Appendf(nil, "%s0%s", before, rest[end:])
}

// sumIs reports whether kubelet's checksum of a text is this number: FNV-1a of the text as Go's
// spew prints its bytes. Sources: kubernetes, pkg/kubelet/checkpointmanager/checksum/checksum.go
// and pkg/util/hash/hash.go; spew's format.go, %#v of a slice.
func sumIs(number, text []byte) bool {
	printed := []byte("([]uint8)[")
	for i, b := range text {
		if i > 0 {
			printed = append(printed, ' ')
		}
		printed = strconv.AppendUint(printed, uint64(b), 10)
	}

	sum := fnv.New32a()
	sum.Write(append(printed, ']'))
	return string(number) == strconv.FormatUint(uint64(sum.Sum32()), 10)
}

// forDNSNames is the driver from which on its IMEX knows peers by their names. The container of
// compute domains asks for it, and ends without. Sources:
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/pull/611
// (IMEXDaemonsWithDNSNamesMinDriverVersion); its pull 1013;
// https://docs.nvidia.com/datacenter/tesla/tesla-release-notes-570-158-01/index.html.
const forDNSNames = "570.158.01"

// lacksComputeDomains says what the container of compute domains looks for and does not find here;
// "" if that is not known.
func (m *Machine) lacksComputeDomains() string {
	driver := m.Facts().Driver
	if driver != nil && hardware.Compare(driver.Version, forDNSNames) < 0 {
		return fmt.Sprintf("it asks for the driver %s or a newer one, and here is %s", forDNSNames, driver.Version)
	}
	devices, known := m.text("/proc/devices")
	if known && !strings.Contains(devices, "nvidia-caps-imex-channels") {
		return "the driver has no IMEX channels here, which it looks for"
	}
	return ""
}

// withoutCheckpoint is the command that has a DRA driver begin anew: without claims, and so without
// the pods that have them.
func withoutCheckpoint(node, file string, pod kube.Pod) string {
	return fmt.Sprintf("kubectl drain %[1]s --ignore-daemonsets --delete-emptydir-data && sudo rm %[2]s && "+
		"kubectl -n %[3]s delete pod %[4]s && kubectl uncordon %[1]s", node, file, pod.Namespace, pod.Name)
}
