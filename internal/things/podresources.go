// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// PodDevice is a device that kubelet has given to a pod.
type PodDevice struct {
	Pod    string // NAMESPACE/NAME
	Device string // as its plugin calls it, without its replica: GPU-… or MIG-…
}

// podResources is kubelet's socket. Sources: https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins
// ("Monitoring device plugin resources"); kubernetes, staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
const podResources = "/var/lib/kubelet/pod-resources/kubelet.sock"

// PodDevices lists what kubelet has given to pods that have not ended, also to those without a process yet; nothing where no kubelet
// answers. Before Kubernetes 1.34 kubelet lists ended pods too (kubernetes, pull 132028 and issue 132020): those of which the container
// engine has stopped the sandbox, and runs no other.
func PodDevices(ctx context.Context, v host.View) ([]PodDevice, error) {
	if _, err := v.Stat(podResources); err != nil || !v.Live() {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	answer, err := v.Call(ctx, podResources, "/v1.PodResourcesLister/List", nil)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kubelet does not run
	}
	if err != nil {
		return nil, err
	}
	found, err := podDevices(answer)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	ended := endedPods(ctx, v)
	var list []PodDevice
	for _, d := range found {
		if !ended[d.Pod] {
			list = append(list, d)
		}
	}
	return list, nil
}

// podDevices reads a ListPodResourcesResponse: pod_resources (1), each with name (1), namespace (2) and containers (3), of which each has
// devices (2) with resource_name (1) and device_ids (2).
func podDevices(answer []byte) (list []PodDevice, err error) {
	err = host.ProtoFields(answer, func(n int, pod []byte) error {
		var name, namespace string
		var ids []string
		err := host.ProtoFields(pod, func(n int, field []byte) error {
			switch n {
			case 1:
				name = string(field)
			case 2:
				namespace = string(field)
			case 3:
				return host.ProtoFields(field, func(n int, devices []byte) error {
					if n != 2 {
						return nil
					}
					of, err := deviceIDs(devices)
					ids = append(ids, of...)
					return err
				})
			}
			return nil
		})
		for _, id := range ids {
			list = append(list, PodDevice{namespace + "/" + name, id})
		}
		return err
	})
	return list, err
}

// deviceIDs are those of NVIDIA's resources. A shared device has its replica behind two colons (NVIDIA/k8s-device-plugin,
// internal/rm/devices.go).
func deviceIDs(devices []byte) (ids []string, err error) {
	ours := false
	err = host.ProtoFields(devices, func(n int, value []byte) error {
		switch n {
		case 1:
			ours = strings.HasPrefix(string(value), "nvidia.com/")
		case 2:
			id, _, _ := strings.Cut(string(value), "::")
			ids = append(ids, id)
		}
		return nil
	})
	if !ours {
		return nil, err
	}
	return ids, err
}

// endedPods are the pods whose sandboxes the container engine has all stopped; none where no engine answers.
func endedPods(ctx context.Context, v host.View) map[string]bool {
	for _, socket := range []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"} {
		ended, err := sandboxes(ctx, v, socket, 1)
		if err != nil {
			continue
		}
		running, err := sandboxes(ctx, v, socket, 0)
		if err != nil {
			continue
		}
		for pod := range running {
			delete(ended, pod)
		}
		return ended
	}
	return nil
}

// sandboxes are the pods of which a container engine has a sandbox in a state: 0 ready, 1 not ready. It sends a ListPodSandboxRequest
// with filter (1), state (2), state (1), and reads of each PodSandbox (1) its metadata (2): name (1), namespace (3).
// Source: k8s.io/cri-api, pkg/apis/runtime/v1/api.proto.
func sandboxes(ctx context.Context, v host.View, socket string, state byte) (map[string]bool, error) {
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", []byte{0x0a, 0x04, 0x12, 0x02, 0x08, state})
	if err != nil {
		return nil, err
	}
	pods := map[string]bool{}
	return pods, host.ProtoFields(answer, func(_ int, sandbox []byte) error {
		return host.ProtoFields(sandbox, func(n int, metadata []byte) error {
			texts := map[int]string{}
			if n != 2 {
				return nil
			}
			err := host.ProtoFields(metadata, func(n int, value []byte) error { texts[n] = string(value); return nil })
			pods[texts[3]+"/"+texts[1]] = true
			return err
		})
	})
}
