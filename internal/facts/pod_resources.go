// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// PodResources is where kubelet's socket is in its folder. Sources:
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins
// ("Monitoring device plugin resources"); kubernetes,
// staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
const PodResources = "/pod-resources/kubelet.sock"

// KubeletFolder is where the kubelet that runs keeps its state: its --root-dir, by the socket of
// its pod resources; "" where none listens. Kubelet binds a temporary name in that folder and
// renames it, and the kernel keeps the first name. Sources: kubernetes/website pull 55430;
// getPodResourcesDir in kubernetes, pkg/kubelet/kubelet_getters.go, and CreateListener in
// k8s.io/cri-client, pkg/util, at v1.35.4. A folder in which another user may write, or that only a
// container has, is none of kubelet's: its answers would hide pods, or make them up.
func KubeletFolder(v host.View) (folder string) {
	for _, s := range listening(v) {
		dir := path.Dir(s.name)
		at, isKubelets := strings.CutSuffix(dir, "/pod-resources")
		if !isKubelets || !path.IsAbs(s.name) {
			continue // anyone binds an abstract name, @…
		}
		if _, err := v.Stat(at + PodResources); err == nil && v.Trusted(dir) == nil {
			folder = at
		}
	}
	return folder
}
