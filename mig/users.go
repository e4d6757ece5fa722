// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// user is a process, or a pod, that prevents a step.
type user struct {
	devices.Holder
	text string
}

// Breaks names the processes that would lose an instance or the GPU. A change to an instance
// without clients breaks nothing; a reset or a change of mode takes the GPU from every process that
// has it open.
func (g gpu) Breaks(ctx context.Context, v host.View, before, after converge.State) (what []string, clients map[string][]string, err error) {
	cache := g.cache()
	d, err := cache.ask(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	at, known := find(d, g.address)
	if !known || StateOf(at).String() != string(before) {
		return nil, nil, nil // Make asks the driver again
	}
	p, err := planTo(d, converge.Change{Ref: converge.Ref{Name: g.address}, After: after})
	if err != nil {
		return nil, nil, err
	}
	plans := []Plan{p}
	if !disturbs(plans) {
		return nil, nil, nil
	}
	users, err := cache.users(ctx, v, d, plans)
	if err != nil {
		return nil, nil, err
	}
	users = slices.DeleteFunc(users, func(u user) bool { return devices.Gone(ctx, u.Pod) })
	if len(users) > 0 {
		what = append(what, "stop-clients")
	}
	if changesMode(p.Steps) && at.Arch == "ampere" {
		what = append(what, "reset-gpu")
	}
	clients = map[string][]string{"stop-clients": texts(users), "reset-gpu": texts(users)}
	services, err := cache.paused(ctx, v, plans)
	if len(services) > 0 {
		what, clients["pause-services"] = append(what, "pause-services"), services
	}
	return what, clients, err
}

func texts(users []user) (list []string) {
	for _, u := range users {
		list = append(list, u.text)
	}
	return list
}

// usersOf lists the processes that would lose their GPU or instance by the steps: those that the
// driver lists, and those that have the device open. DCGM and others keep an instance from being
// destroyed though the driver lists no process (https://github.com/NVIDIA/DCGM/issues/276,
// https://github.com/NVIDIA/go-nvml/issues/146). Services that gpuadm pauses do not count.
func usersOf(v host.View, g host.GPU, steps []Step, open []devices.Holder) (list []user) {
	add := func(pids []int, of string, holds func(devices.Holder) bool) {
		for _, pid := range pids {
			h := devices.Holder{PID: pid}
			if i := slices.IndexFunc(open, func(h devices.Holder) bool { return h.PID == pid }); i >= 0 {
				h = open[i]
			}
			list = append(list, user{h, fmt.Sprintf("%s uses %s", h.Who(), of)})
		}
		for _, h := range open {
			if holds(h) && !slices.Contains(pids, h.PID) {
				list = append(list, user{h, h.String()})
			}
		}
	}
	if changesMode(steps) {
		add(g.Clients, fmt.Sprintf("GPU %d", g.Index), func(h devices.Holder) bool { return h.HasGPU(g.Minor) })
	}
	for i, in := range g.Instances {
		if changesMode(steps) || !goes(g, i, steps) {
			continue
		}
		var compute []int
		for _, c := range in.Compute {
			compute = append(compute, c.ID)
		}
		caps := devices.Capabilities(v, g.Minor, in.ID, compute)
		add(in.Clients, fmt.Sprintf("%s of GPU %d", partOf(g, i), g.Index), func(h devices.Holder) bool { return h.HasCapability(caps) })
	}
	paused := append(modeServices(), instanceServices()...)
	return slices.DeleteFunc(list, func(u user) bool { return slices.Contains(paused, u.Unit) || u.Unit == things.Persistenced })
}

// instanceServices are services of the machine that hold instances, in the order in which to stop
// them. dcgm.service is another name of nvidia-dcgm.service. Sources: nvidia-mig-manager's clients;
// config-files/systemd in https://github.com/NVIDIA/DCGM; packaging in
// https://github.com/NVIDIA/dcgm-exporter; deployments/systemd in
// https://github.com/NVIDIA/nvidia-container-toolkit.
func instanceServices() []string {
	return []string{
		"nvidia-dcgm-exporter.service", "dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service",
		"nvidia-device-plugin.service", cdi.Unit,
	}
}

// modeServices hold every GPU, and keep it from changing its mode: nvidia-mig-manager's clients,
// and https://github.com/NVIDIA/mig-parted/issues/181.
func modeServices() []string {
	return []string{"nvsm.service", "nvsm-core.service", "nvsm-mqtt.service", "nvsm-notifier.service", "nvsm-api-gateway.service"}
}

// pausedFor are the services to pause for these plans. nvidia-persistenced is not among them: a
// Runner pauses it while modes change.
func pausedFor(plans []Plan) []string {
	if slices.ContainsFunc(plans, func(p Plan) bool { return changesMode(p.Steps) }) {
		return append(modeServices(), instanceServices()...)
	}
	return instanceServices()
}

// users lists the processes that block the plans.
func (s *driverCache) users(ctx context.Context, v host.View, d *host.Driver, plans []Plan) (list []user, err error) {
	open, err := s.open(ctx, v)
	if err != nil {
		return nil, err
	}
	pods, err := devices.OfPods(ctx, v)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		if g, known := find(d, p.GPU); known {
			list = append(list, withOwners(usersOf(v, g, p.Steps, open), g, p.Steps, pods)...)
		}
	}
	return list, nil
}

// holding names the processes that have a device of GPUs open.
func holding(ctx context.Context, v host.View, d *host.Driver, gpus []string) (list []string, err error) {
	open, err := devices.Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	for _, h := range open {
		holds := slices.ContainsFunc(gpus, func(name string) bool {
			g, known := find(d, name)
			return known && (h.HasGPU(g.Minor) || slices.ContainsFunc(g.Instances, func(in host.Instance) bool {
				return h.HasCapability(devices.Capabilities(v, g.Minor, in.ID, nil))
			}))
		})
		if holds {
			list = append(list, h.String())
		}
	}
	return list, nil
}

func names(plans []Plan) (list []string) {
	for _, p := range plans {
		list = append(list, p.GPU)
	}
	return list
}

// refuseUsers refuses, before anything is touched, if a process has started since the operator
// agreed, or if a pod uses a GPU: only a drain may end pods.
func refuseUsers(ctx context.Context, h host.Host, d *host.Driver, plans []Plan, all []converge.Change) error {
	found, err := new(driverCache).users(ctx, h, d, plans)
	if err != nil || len(found) == 0 {
		return err
	}
	allowed := slices.ContainsFunc(all, func(c converge.Change) bool { return slices.Contains(c.Breaks, "stop-clients") })
	pods := slices.DeleteFunc(slices.Clone(found), func(u user) bool { return u.Pod == "" })
	switch {
	case !allowed:
		return &trouble.Error{
			What: "cannot change the partitions: the GPUs are in use", Because: trouble.Few(texts(found), 6), Err: converge.ErrInUse,
			Try: []string{"stop them, or run again with --allow stop-clients"},
		}
	case len(pods) > 0:
		return &trouble.Error{
			What: "cannot take GPUs from pods: Kubernetes would start their processes again", Because: trouble.Few(texts(pods), 6), Err: converge.ErrInUse,
			Try: []string{"kubectl drain this node, or delete these pods, and run the same command again"},
		}
	}
	return nil
}

// endUsers ends the processes that use what the plans destroy, as the operator has allowed, before
// anything is destroyed.
func endUsers(ctx context.Context, h host.Host, d *host.Driver, plans []Plan) error {
	found, err := new(driverCache).users(ctx, h, d, plans)
	if err != nil {
		return err
	}
	var holders []devices.Holder
	for _, u := range found {
		if u.PID == 0 { // a new pod: it has no process to end
			return &trouble.Error{What: "cannot change the partitions: " + u.text, Err: converge.ErrInUse, Try: []string{"run the same command again"}}
		}
		if !slices.ContainsFunc(holders, func(o devices.Holder) bool { return o.PID == u.PID }) {
			holders = append(holders, u.Holder)
		}
	}
	return devices.EndHolders(ctx, h, holders)
}
