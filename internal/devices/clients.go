// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// Clients names the processes that hold a GPU: those with a device of NVIDIA's open; and the pods
// that have a GPU and no such process yet. It reads /proc, since NVML knows only clients with a
// CUDA context, and any open file keeps the kernel module loaded.
func Clients(ctx context.Context, v host.View) ([]string, error) {
	holders, err := Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	pods, err := OfPods(ctx, v)
	if err != nil {
		return nil, err
	}

	gone := func(h Holder) bool { return Gone(v, h.Pod) }
	clients := NamesOf(slices.DeleteFunc(slices.Clone(holders), gone))
	for _, p := range pods {
		holds := slices.ContainsFunc(holders, func(h Holder) bool { return h.Pod == p.Pod })
		if !holds && !Gone(v, p.Pod) {
			clients = append(clients, fmt.Sprintf("pod %s has %s", p.Pod, p.Device))
		}
	}

	return clients, nil
}

// Pods names the pods that use a GPU: NAMESPACE/NAME, or "uid UID" where kubelet has left no name.
func Pods(ctx context.Context, v host.View) ([]string, error) {
	holders, err := Holders(ctx, v)
	if err != nil {
		return nil, err
	}

	var pods []string
	given, err := OfPods(ctx, v)
	for _, h := range holders {
		pods = append(pods, h.Pod)
	}
	for _, p := range given {
		pods = append(pods, p.Pod)
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)

	return slices.DeleteFunc(pods, func(pod string) bool { return pod == "" }), err
}

// without is a machine from which some pods are thought away.
type without struct {
	host.View
	gone func(pod string) bool
}

// WithoutPods is the machine as it would be if the pods were gone for which gone is true, by
// NAMESPACE/NAME or "uid UID": their processes use no GPU.
func WithoutPods(v host.View, gone func(pod string) bool) host.View {
	return &without{v, gone}
}

// Gone reports whether a pod is thought away from this machine.
func Gone(v host.View, pod string) bool {
	w, is := view.Machine(v).(*without)
	return is && pod != "" && w.gone(pod)
}

// NamesOf names the holders and what they have open, except the driver's own daemons.
func NamesOf(holders []Holder) []string {
	var clients []string
	for _, h := range holders {
		if !h.Daemon() { // they only serve others, and are stopped and started with what they hold
			clients = append(clients, h.String())
		}
	}

	return clients
}
