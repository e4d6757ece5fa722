// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// PodDevice is a device that kubelet has given to a pod.
type PodDevice struct {
	Pod    string // NAMESPACE/NAME
	Device string // as its plugin calls it, without its replica: GPU-… or MIG-…
}

// OfPods lists what kubelet has given to pods that have not ended, also to those without a process
// yet; nothing where no kubelet answers. Before Kubernetes 1.34 kubelet lists ended pods too, but
// without their devices, which it frees before it lists. Sources: kubernetes, pull 79409; List in
// pkg/kubelet/apis/podresources/server_v1.go and UpdateAllocatedDevices in
// pkg/kubelet/cm/devicemanager/manager.go at v1.35.4, with the feature gate
// KubeletPodResourcesListUseActivePods off (pull 132028).
func OfPods(ctx context.Context, v host.View) ([]PodDevice, error) {
	socket := cmp.Or(facts.KubeletFolder(v), facts.Kubelet{}.Folder()) + facts.PodResources
	_, err := v.Stat(socket)
	switch {
	case host.NotExist(err) || !v.Live():
		return nil, nil
	case err != nil:
		return nil, err
	}

	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	answer, err := v.Call(ctx, socket, "/v1.PodResourcesLister/List", nil)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kubelet does not run
	}
	if err != nil {
		return nil, err
	}

	return podDevices(answer)
}

// podDevices reads a ListPodResourcesResponse: its pod_resources (1).
func podDevices(answer []byte) ([]PodDevice, error) {
	var list []PodDevice
	err := host.ProtoFields(answer, func(_ int, pod []byte) error {
		devices, err := devicesOfPod(pod)
		list = append(list, devices...)
		return err
	})

	return list, err
}

// devicesOfPod reads a PodResources: name (1), namespace (2) and containers (3).
func devicesOfPod(pod []byte) ([]PodDevice, error) {
	var name, namespace string
	var ids []string
	err := host.ProtoFields(pod, func(n int, field []byte) error {
		switch n {
		case 1:
			name = string(field)
		case 2:
			namespace = string(field)
		case 3:
			more, err := idsOfContainer(field)
			ids = append(ids, more...)
			return err
		}
		return nil
	})

	var list []PodDevice
	for _, id := range ids {
		list = append(list, PodDevice{Pod: namespace + "/" + name, Device: id})
	}

	return list, err
}

// idsOfContainer reads the devices (2) of a ContainerResources.
func idsOfContainer(container []byte) ([]string, error) {
	var ids []string
	err := host.ProtoFields(container, func(n int, devices []byte) error {
		if n != 2 {
			return nil
		}
		more, err := deviceIDs(devices)
		ids = append(ids, more...)
		return err
	})

	return ids, err
}

// deviceIDs reads a ContainerDevices, resource_name (1) and device_ids (2), if the devices are GPUs
// or their partitions. A shared device has its replica behind two colons. The resources of NVIDIA's
// network cards are nvidia.com's too, such as nvidia.com/hostdev: those devices have PCI addresses.
// Sources: NVIDIA/k8s-device-plugin, internal/rm/devices.go;
// https://docs.nvidia.com/networking/display/kubernetes2570/quick-start/host-device-rdma.html;
// https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin.
func deviceIDs(devices []byte) ([]string, error) {
	var ids []string
	isNvidia := false
	err := host.ProtoFields(devices, func(n int, value []byte) error {
		switch n {
		case 1:
			isNvidia = strings.HasPrefix(string(value), "nvidia.com/")
		case 2:
			id, _, _ := strings.Cut(string(value), "::")
			if !pciAddress().MatchString(id) {
				ids = append(ids, id)
			}
		}
		return nil
	})
	if !isNvidia {
		return nil, err
	}

	return ids, err
}

// pciAddress matches the address of a function on the PCI bus.
var pciAddress = pattern.Of(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
