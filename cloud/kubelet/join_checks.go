// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// CheckStart refuses a configuration with which kubelet would not start: it would exit repeatedly,
// with the reason only in its log.
func CheckStart(config table, s spec.Spec, f facts.Facts) error {
	file := cmp.Or(s.Join.KubeletConfig, "a file that kubelet_config in [join] names")
	if f.Cgroup == 1 && refusesCgroup1(f.Kubelet.Version) && config["failCgroupV1"] != false {
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet %s does not start on a machine with cgroup v1", f.Kubelet.Version),
			Try: []string{
				faults.Of("KUB-020").Fix,
				"or write failCgroupV1: false into " + file,
			},
		}
	}

	swaps := swapsOn(f.Files["/proc/swaps"])
	if len(swaps) > 0 && config["failSwapOn"] != false {
		const about = "https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/"
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet does not start while swap is on (%s)", strings.Join(swaps, ", ")),
			Try: []string{
				faults.Of("KUB-006").Fix,
				"or write failSwapOn: false into " + file + ", and read " + about,
			},
		}
	}

	return nil
}

// refusesCgroup1 says whether a kubelet refuses cgroup v1 unless its configuration says otherwise:
// failCgroupV1 is true by default from 1.35 on (kubernetes,
// pkg/kubelet/apis/config/v1beta1/defaults.go).
func refusesCgroup1(kubelet string) bool {
	v, err := version.NewVersion(kubelet)
	return err == nil && v.Core().GreaterThanOrEqual(version.Must(version.NewVersion("1.35.0")))
}

// swapsOn returns the swaps in use from /proc/swaps, whose first line is a heading.
func swapsOn(data []byte) (names []string) {
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		words := strings.Fields(line)
		if i > 0 && len(words) > 0 {
			names = append(names, words[0])
		}
	}
	return names
}
