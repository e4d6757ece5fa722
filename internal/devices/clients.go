// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
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

	gone := func(h Holder) bool { return Gone(ctx, h.Pod) }
	clients := NamesOf(slices.DeleteFunc(slices.Clone(holders), gone))
	for _, p := range pods {
		holds := slices.ContainsFunc(holders, func(h Holder) bool { return h.Pod == p.Pod })
		if !holds && !Gone(ctx, p.Pod) {
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

type podsKey struct{}

// WithoutPods has the users of the GPUs listed as if the pods were gone for which gone is true, by
// NAMESPACE/NAME or "uid UID".
func WithoutPods(ctx context.Context, gone func(pod string) bool) context.Context {
	return context.WithValue(ctx, podsKey{}, gone)
}

// Gone reports whether a pod counts as gone.
func Gone(ctx context.Context, pod string) bool {
	gone, ok := ctx.Value(podsKey{}).(func(string) bool)
	return ok && pod != "" && gone(pod)
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
