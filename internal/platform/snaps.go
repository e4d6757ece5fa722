// SPDX-License-Identifier: Apache-2.0

package platform

// The snaps keep the arguments of each daemon in a file. MicroK8s makes the engine's configuration
// from a template at each start. Sources: microk8s-resources/wrappers/run-containerd-with-args of
// https://github.com/canonical/microk8s; src/k8s/pkg/k8sd/setup/containerd.go of
// https://github.com/canonical/k8s-snap.
var (
	microK8s = Platform{
		Name:   "microk8s",
		Title:  "MicroK8s",
		Engine: Engine{Made: "MicroK8s: generated from its containerd-template.toml at each start; gpuadm edits the template"},
		Snap: &Snap{
			Args:    "/var/snap/microk8s/current/args",
			Engine:  "snap.microk8s.daemon-containerd.service",
			Kubelet: "snap.microk8s.daemon-kubelite.service",
		},
	}
	k8sSnap = Platform{
		Name:   "k8s",
		Title:  "Canonical Kubernetes",
		Engine: Engine{Made: "the snap k8s: generated from its template; gpuadm adds a file next to it"},
		Snap: &Snap{
			Args:    "/var/snap/k8s/common/args",
			Engine:  "snap.k8s.containerd.service",
			Kubelet: "snap.k8s.kubelet.service",
		},
	}
)
