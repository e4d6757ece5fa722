// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Starts refuses what kubelet would not start with: it would end again and again, and say why in its log only.
func Starts(config table, s spec.Spec, f facts.Facts) error {
	file := s.Join.KubeletConfig
	if file == "" {
		file = "a file that kubelet_config in [join] names"
	}
	if f.Cgroup == 1 && refusesCgroup1(f.Kubelet.Version) && config["failCgroupV1"] != false {
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet %s does not start on a machine with cgroup v1", f.Kubelet.Version),
			Try: []string{
				"boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line, or use a newer OS: cgroup v1 goes away",
				"or write failCgroupV1: false into " + file,
			},
		}
	}
	if swaps := swapsOn(f.Files["/proc/swaps"]); len(swaps) > 0 && config["failSwapOn"] != false {
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet does not start while swap is on (%s)", strings.Join(swaps, ", ")),
			Try: []string{
				"swapoff -a, and take the swap out of /etc/fstab",
				"or write failSwapOn: false into " + file + ", and read https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/",
			},
		}
	}
	return nil
}

// refusesCgroup1 says whether a kubelet refuses cgroup v1 unless its configuration says otherwise: failCgroupV1 is true by default
// from 1.35 on (kubernetes, pkg/kubelet/apis/config/v1beta1/defaults.go).
func refusesCgroup1(kubelet string) bool {
	v, err := version.NewVersion(kubelet)
	return err == nil && v.Core().GreaterThanOrEqual(version.Must(version.NewVersion("1.35.0")))
}

// swapsOn are the swaps in use: /proc/swaps, the first line of which is a heading.
func swapsOn(data []byte) (names []string) {
	for i, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		if words := strings.Fields(string(line)); i > 0 && len(words) > 0 {
			names = append(names, words[0])
		}
	}
	return names
}
