// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Clients names the processes that hold a GPU: those with a device of NVIDIA's open; and the pods
// that have a GPU and no such process yet. It reads /proc, since NVML knows only clients with a
// CUDA context, and the kernel module is kept by any open file.
func Clients(ctx context.Context, v host.View) ([]string, error) {
	holders, err := Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	pods, err := OfPods(ctx, v)
	if err != nil {
		return nil, err
	}
	clients := NamesOf(slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool { return Gone(ctx, h.Pod) }))
	for _, p := range pods {
		if !Gone(ctx, p.Pod) && !slices.ContainsFunc(holders, func(h Holder) bool { return h.Pod == p.Pod }) {
			clients = append(clients, fmt.Sprintf("pod %s has %s", p.Pod, p.Device))
		}
	}
	return clients, nil
}

type podsKey struct{}

// WithoutPods has the users of the GPUs listed as if the pods were gone for which gone is true, by
// NAMESPACE/NAME or "uid UID".
func WithoutPods(ctx context.Context, gone func(pod string) bool) context.Context {
	return context.WithValue(ctx, podsKey{}, gone)
}

// Gone says whether a pod counts as gone.
func Gone(ctx context.Context, pod string) bool {
	gone, ok := ctx.Value(podsKey{}).(func(string) bool)
	return ok && pod != "" && gone(pod)
}

// Pods names the pods that use a GPU: NAMESPACE/NAME, or "uid UID" where kubelet has left no name.
func Pods(ctx context.Context, v host.View) (pods []string, err error) {
	holders, err := Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	given, err := OfPods(ctx, v)
	for _, h := range holders {
		pods = append(pods, h.Pod)
	}
	for _, p := range given {
		pods = append(pods, p.Pod)
	}
	slices.Sort(pods)
	return slices.DeleteFunc(slices.Compact(pods), func(pod string) bool { return pod == "" }), err
}

// NamesOf names the holders and what they have open, but for the driver's own daemons.
func NamesOf(holders []Holder) (clients []string) {
	for _, h := range holders {
		if !h.Daemon() { // they only serve others, and are stopped and started with what they hold
			clients = append(clients, h.String())
		}
	}
	return clients
}

// gpuFiles names the devices of NVIDIA's that a process has open. Only their numbers say what they
// are: in a mount namespace of its own any user may call any file /dev/nvidia0.
func gpuFiles(v host.View, pid int, majors map[uint32]string) (files []string, devices []OpenDevice, err error) {
	all, err := v.OpenDevices(pid)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range all {
		driver, ok := majors[d.Major]
		if !ok {
			continue
		}
		name := d.Name
		if !strings.HasPrefix(name, "/dev/nvidia") || path.Clean(name) != name || len(name) > 64 {
			name = fmt.Sprintf("device %d:%d of %s", d.Major, d.Minor, driver)
		}
		files, devices = append(files, name), append(devices, OpenDevice{driver, d.Major, d.Minor})
	}
	return trouble.Few(files, 4), devices, nil
}

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
	folder := cmp.Or(facts.KubeletFolder(v), facts.Kubelet{}.Folder())
	if _, err := v.Stat(folder + facts.PodResources); err != nil || !v.Live() {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	answer, err := v.Call(ctx, folder+facts.PodResources, "/v1.PodResourcesLister/List", nil)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kubelet does not run
	}
	if err != nil {
		return nil, err
	}
	return podDevices(answer)
}

// podDevices reads a ListPodResourcesResponse: pod_resources (1), each with name (1), namespace (2)
// and containers (3), of which each has devices (2) with resource_name (1) and device_ids (2).
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

// deviceIDs are those of NVIDIA's resources. A shared device has its replica behind two colons
// (NVIDIA/k8s-device-plugin, internal/rm/devices.go).
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
