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

func texts(users []user) []string {
	var list []string
	for _, u := range users {
		list = append(list, u.text)
	}

	return list
}

// Breaks names the processes that would lose an instance or the GPU. A change to an instance
// without clients breaks nothing; a reset or a change of mode takes the GPU from every process that
// has it open.
func (g gpu) Breaks(
	ctx context.Context, v host.View, before, after converge.State,
) ([]string, map[string][]string, error) {
	cache := g.cache()
	d, err := cache.ask(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	found, known := find(d, g.address)
	if !known || StateOf(found).String() != string(before) {
		return nil, nil, nil // Make asks the driver again
	}
	p, err := planTo(d, converge.Change{Ref: g.Ref(), After: after})
	if err != nil {
		return nil, nil, err
	}
	plans := []Plan{p}
	if !p.disturbs() && len(servicesToPause(plans)) == 0 {
		return nil, nil, nil
	}

	users, err := cache.users(ctx, v, d, plans)
	if err != nil {
		return nil, nil, err
	}
	users = slices.DeleteFunc(users, func(u user) bool { return devices.Gone(v, u.Pod) })

	var breaks []string
	if len(users) > 0 {
		breaks = append(breaks, "stop-clients")
	}
	if p.changesMode() && found.Arch == "ampere" {
		breaks = append(breaks, "reset-gpu")
	}
	clients := map[string][]string{"stop-clients": texts(users), "reset-gpu": texts(users)}
	services, err := cache.paused(ctx, v, plans)
	if len(services) > 0 {
		breaks = append(breaks, "pause-services")
		clients["pause-services"] = services
	}

	return breaks, clients, err
}

// users lists the processes and pods that block the plans.
func (c *driverCache) users(ctx context.Context, v host.View, d *host.Driver, plans []Plan) ([]user, error) {
	open, err := c.open(ctx, v)
	if err != nil {
		return nil, err
	}
	pods, err := devices.OfPods(ctx, v)
	if err != nil {
		return nil, err
	}

	var list []user
	for _, p := range plans {
		g, known := find(d, p.GPU)
		if known {
			processes, err := usersOf(v, g, p, open)
			if err != nil {
				return nil, err
			}
			list = append(list, withOwners(processes, g, p.Steps, pods)...)
		}
	}

	return list, nil
}

// usersOf lists the processes that would lose their GPU or instance by the steps: those that the
// driver lists, and those that have the device open. DCGM and others keep an instance from being
// destroyed though the driver lists no process (https://github.com/NVIDIA/DCGM/issues/276,
// https://github.com/NVIDIA/go-nvml/issues/146). Services that gpuadm pauses do not count.
func usersOf(v host.View, g host.GPU, p Plan, open []devices.Holder) ([]user, error) {
	steps := p.Steps
	var list []user
	add := func(pids []int, what string, holds func(devices.Holder) bool) {
		for _, pid := range pids {
			h := devices.Holder{PID: pid}
			i := slices.IndexFunc(open, func(o devices.Holder) bool { return o.PID == pid })
			if i >= 0 {
				h = open[i]
			}
			list = append(list, user{h, fmt.Sprintf("%s uses %s", h.Who(), what)})
		}

		for _, h := range open {
			if holds(h) && !slices.Contains(pids, h.PID) {
				list = append(list, user{h, h.String()})
			}
		}
	}

	if changesMode(steps) {
		hasGPU := func(h devices.Holder) bool { return h.HasGPU(g.Minor) }
		add(g.Clients, fmt.Sprintf("GPU %d", g.Index), hasGPU)
	}
	for i, in := range g.Instances {
		if changesMode(steps) || !destroysIn(g, i, steps) {
			continue
		}
		var compute []int
		for _, c := range in.Compute {
			compute = append(compute, c.ID)
		}
		caps, err := devices.Capabilities(v, g.Minor, in.ID, compute)
		if err != nil {
			return nil, err
		}
		hasInstance := func(h devices.Holder) bool { return h.HasCapability(caps) }
		add(in.Clients, fmt.Sprintf("%s of GPU %d", partOf(g, i), g.Index), hasInstance)
	}

	paused := slices.Concat(modeServices(), instanceServices(), p.Stop)
	paused = append(paused, things.Persistenced)
	list = slices.DeleteFunc(list, func(u user) bool {
		return slices.Contains(paused, u.Unit)
	})
	return list, nil
}

// withOwners adds the pods without a process to which kubelet has assigned the GPU, or an instance
// that will be destroyed: such a pod may still be pulling its image.
func withOwners(users []user, g host.GPU, steps []Step, pods []devices.PodDevice) []user {
	mode := changesMode(steps)
	for _, p := range pods {
		lost := "" // what the pod would lose
		if mode && p.Device == g.UUID {
			lost = fmt.Sprintf("GPU %d", g.Index)
		}
		for i, in := range g.Instances {
			has := slices.ContainsFunc(in.Compute, func(c host.ComputeInstance) bool {
				return c.UUID == p.Device
			})
			if has && (mode || destroysIn(g, i, steps)) {
				lost = fmt.Sprintf("%s of GPU %d", partOf(g, i), g.Index)
			}
		}

		if lost == "" || p.Device == "" {
			continue
		}

		listed := slices.ContainsFunc(users, func(u user) bool { return u.Pod == p.Pod })
		if !listed {
			users = append(users, user{devices.Holder{Pod: p.Pod}, fmt.Sprintf("pod %s has %s", p.Pod, lost)})
		}
	}

	return users
}

// partOf is an instance of a GPU as a Part of its state.
func partOf(g host.GPU, i int) Part {
	alone := host.GPU{
		MIG:       true,
		Mode:      true,
		Pending:   true,
		Profiles:  g.Profiles,
		Instances: g.Instances[i : i+1],
	}
	return StateOf(alone).Parts[0]
}

// destroysIn reports whether the steps destroy an instance of a GPU, or compute instances in it.
func destroysIn(g host.GPU, i int, steps []Step) bool {
	part := partOf(g, i)
	return slices.ContainsFunc(steps, func(s Step) bool {
		return s.destroys() && s.At.Start == part.Start && s.Name == part.Profile
	})
}

// instanceServices are services of the machine that hold instances, in the order in which to stop
// them. dcgm.service is another name of nvidia-dcgm.service. Sources: nvidia-mig-manager's clients;
// config-files/systemd in https://github.com/NVIDIA/DCGM; packaging in
// https://github.com/NVIDIA/dcgm-exporter; deployments/systemd in
// https://github.com/NVIDIA/nvidia-container-toolkit.
func instanceServices() []string {
	return []string{
		"nvidia-dcgm-exporter.service", "dcgm-exporter.service",
		"nvidia-dcgm.service", "dcgm.service",
		"nvidia-device-plugin.service",
		cdi.Unit,
	}
}

// modeServices hold every GPU, and keep it from changing its mode: nvidia-mig-manager's clients,
// and https://github.com/NVIDIA/mig-parted/issues/181.
func modeServices() []string {
	return []string{
		"nvsm.service", "nvsm-core.service",
		"nvsm-mqtt.service", "nvsm-notifier.service", "nvsm-api-gateway.service",
	}
}

// servicesToPause are the services to pause for these plans, those first that node.toml names: they
// may use the others. nvidia-persistenced is not among them: a Runner pauses it while modes change.
// A plan that only makes partitions pauses no service but those that node.toml names.
func servicesToPause(plans []Plan) []string {
	var units []string
	for _, p := range plans {
		for _, unit := range p.Stop {
			if len(p.Steps) > 0 && !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}

	if slices.ContainsFunc(plans, Plan.changesMode) {
		units = append(units, modeServices()...)
	}
	if slices.ContainsFunc(plans, Plan.disturbs) {
		units = append(units, instanceServices()...)
	}
	return units
}

// holding names the processes that have a device of GPUs open.
func holding(ctx context.Context, v host.View, d *host.Driver, gpus []string) ([]string, error) {
	open, err := devices.Holders(ctx, v)
	if err != nil {
		return nil, err
	}

	var list []string
	for _, h := range open {
		holds, err := holdsOneOf(v, h, d, gpus)
		if err != nil {
			return nil, err
		}
		if holds {
			list = append(list, h.String())
		}
	}

	return list, nil
}

// holdsOneOf reports whether a process has one of the GPUs open, or an instance of one.
func holdsOneOf(v host.View, h devices.Holder, d *host.Driver, gpus []string) (bool, error) {
	for _, address := range gpus {
		g, known := find(d, address)
		if !known {
			continue
		}
		holds, err := holdsAny(v, h, g)
		if holds || err != nil {
			return holds, err
		}
	}
	return false, nil
}

// holdsAny reports whether a process has the GPU open, or one of its instances.
func holdsAny(v host.View, h devices.Holder, g host.GPU) (bool, error) {
	if h.HasGPU(g.Minor) {
		return true, nil
	}
	for _, in := range g.Instances {
		caps, err := devices.Capabilities(v, g.Minor, in.ID, nil)
		if err != nil {
			return false, err
		}
		if h.HasCapability(caps) {
			return true, nil
		}
	}
	return false, nil
}

// refuseUsers refuses, before anything is touched, if a process has started since the operator
// agreed, or if a pod uses a GPU: only a drain may end pods.
func refuseUsers(
	ctx context.Context, h host.Host, d *host.Driver, plans []Plan, all []converge.Change,
) error {
	found, err := new(driverCache).users(ctx, h, d, plans)
	if err != nil || len(found) == 0 {
		return err
	}

	allowed := slices.ContainsFunc(all, func(c converge.Change) bool {
		return slices.Contains(c.Breaks, "stop-clients")
	})
	if !allowed {
		return &trouble.Error{
			What:    "cannot change the partitions: the GPUs are in use",
			Because: trouble.Few(texts(found), 6),
			Try:     []string{"stop them, or run again with --allow stop-clients"},
			Err:     converge.ErrInUse,
		}
	}

	pods := slices.DeleteFunc(slices.Clone(found), func(u user) bool { return u.Pod == "" })
	if len(pods) > 0 {
		return &trouble.Error{
			What:    "cannot take GPUs from pods: Kubernetes would start their processes again",
			Because: trouble.Few(texts(pods), 6),
			Try:     []string{"kubectl drain this node, or delete these pods, and run the same command again"},
			Err:     converge.ErrInUse,
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
			return &trouble.Error{
				What: "cannot change the partitions: " + u.text,
				Try:  []string{"run the same command again"},
				Err:  converge.ErrInUse,
			}
		}

		listed := slices.ContainsFunc(holders, func(o devices.Holder) bool {
			return o.PID == u.PID
		})
		if !listed {
			holders = append(holders, u.Holder)
		}
	}

	return devices.EndHolders(ctx, h, holders)
}
