// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// migDevice is one partition that a pod can have.
type migDevice struct {
	gpu   string // the GPU's name
	name  string // 1g.10gb, 1c.3g.40gb, 1g.10gb.me
	share host.Share
}

// mig describes partitions: under the name of a GPU if all are alike (single), or each kind under
// its own name (mixed).
func (d *discovery) mig(strategy string) (why string) {
	var enabled []host.GPU // in MIG mode
	var devices []migDevice
	unpartitioned := false
	for _, g := range d.driver.GPUs {
		if !g.Mode {
			continue
		}
		found, why := migDevices(g)
		if why != "" {
			return why
		}
		enabled = append(enabled, g)
		devices = append(devices, found...)
		unpartitioned = unpartitioned || len(found) == 0
	}

	counts := map[string]int{}
	kinds := map[string]migDevice{}
	for _, m := range devices {
		if counts[m.name] == 0 {
			kinds[m.name] = m
		}
		counts[m.name]++
	}

	switch {
	case strategy == "mixed":
		for name, kind := range kinds {
			d.partition("mig-"+name, kind, counts[name])
		}
	case len(enabled) == 0: // as without MIG
	case unpartitioned || len(enabled) != len(d.driver.GPUs) || len(kinds) != 1:
		d.invalid(enabled)
	default:
		d.partition("gpu", devices[0], len(devices))
	}

	return ""
}

// invalid describes GPUs that strategy single cannot offer under one name.
func (d *discovery) invalid(enabled []host.GPU) {
	first := slices.MinFunc(enabled, func(a, b host.GPU) int { return a.Index - b.Index })
	d.set("gpu.product", sanitise(first.Name)+"-MIG-INVALID")
	d.set("gpu.count", 0)
	d.set("gpu.replicas", 0)
	d.set("gpu.sharing-strategy", "")
	d.set("gpu.memory", 0)
}

// partition describes partitions of one kind.
func (d *discovery) partition(name string, kind migDevice, count int) {
	d.offer(name, count, kind.gpu, "MIG", kind.name)
	d.set(name+".memory", kind.share.Memory>>20)
	d.set(name+".multiprocessors", kind.share.SMs)
	d.set(name+".slices.gi", kind.share.Slices)
	d.set(name+".slices.ci", kind.share.Compute)
	d.set(name+".engines.copy", kind.share.Copy)
	d.set(name+".engines.decoder", kind.share.Decoders)
	d.set(name+".engines.encoder", kind.share.Encoders)
	d.set(name+".engines.jpeg", kind.share.JPEG)
	d.set(name+".engines.ofa", kind.share.OFAs)
}

// migDevices lists the partitions of a GPU: one for each compute instance.
func migDevices(g host.GPU) (devices []migDevice, why string) {
	for _, instance := range g.Instances {
		profile, hasProfile := profileOf(g, instance)
		for _, compute := range instance.Compute {
			hasShare := compute.Share != host.Share{}
			if !hasProfile || !hasShare {
				return nil, fmt.Sprintf("the driver does not say what the partitions of GPU %s have", g.Address)
			}
			devices = append(devices, migDevice{
				gpu:   g.Name,
				name:  migName(g, profile, compute),
				share: compute.Share,
			})
		}
	}
	return devices, ""
}

// profileOf returns the profile of an instance; false if the driver does not name it.
func profileOf(g host.GPU, instance host.Instance) (host.Profile, bool) {
	i := slices.IndexFunc(g.Profiles, func(p host.Profile) bool {
		return p.ID == instance.Profile
	})
	if i < 0 {
		return host.Profile{}, false
	}
	return g.Profiles[i], true
}

// migName returns the partition's profile as NVIDIA's library for Go composes it: from the
// partition's own slices and memory, while NVML's names come from the profile. A label's key may
// have no +.
// Source: https://github.com/NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go.
func migName(g host.GPU, p host.Profile, c host.ComputeInstance) string {
	p.Memory = c.Share.Memory
	name := strings.ReplaceAll(host.ProfileName(p, g.Memory), "+", ".")
	for _, kind := range p.Compute {
		if kind.ID == c.Profile && kind.Slices != p.Slices {
			return fmt.Sprintf("%dc.%s", kind.Slices, name)
		}
	}

	return name
}
