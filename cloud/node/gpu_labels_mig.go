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
	var enabled []host.GPU
	var all []migDevice
	empty := false
	for _, g := range d.driver.GPUs {
		if !g.Mode {
			continue
		}
		devices, why := migDevices(g)
		if why != "" {
			return why
		}
		enabled, all, empty = append(enabled, g), append(all, devices...), empty || len(devices) == 0
	}
	counts := map[string]int{}
	for _, m := range all {
		counts[m.name]++
	}
	switch {
	case strategy == "mixed":
		for name, count := range counts {
			d.partition("mig-"+name, first(all, name), count)
		}
	case len(enabled) == 0: // as without MIG
	case empty || len(enabled) != len(d.driver.GPUs) || len(counts) != 1:
		named := slices.MinFunc(enabled, func(a, b host.GPU) int { return a.Index - b.Index })
		d.set("gpu.product", sanitise(named.Name)+"-MIG-INVALID")
		d.set("gpu.count", 0)
		d.set("gpu.replicas", 0)
		d.set("gpu.sharing-strategy", "")
		d.set("gpu.memory", 0)
	default:
		d.partition("gpu", all[0], len(all))
	}
	return ""
}

func first(all []migDevice, name string) migDevice {
	return all[slices.IndexFunc(all, func(m migDevice) bool { return m.name == name })]
}

// partition describes partitions of one kind.
func (d *discovery) partition(name string, of migDevice, count int) {
	d.offer(name, count, of.gpu, "MIG", of.name)
	d.set(name+".memory", of.share.Memory>>20)
	d.set(name+".multiprocessors", of.share.SMs)
	d.set(name+".slices.gi", of.share.Slices)
	d.set(name+".slices.ci", of.share.Compute)
	d.set(name+".engines.copy", of.share.Copy)
	d.set(name+".engines.decoder", of.share.Decoders)
	d.set(name+".engines.encoder", of.share.Encoders)
	d.set(name+".engines.jpeg", of.share.JPEG)
	d.set(name+".engines.ofa", of.share.OFAs)
}

// migDevices lists the partitions of a GPU: one for each compute instance.
func migDevices(g host.GPU) (all []migDevice, why string) {
	for _, in := range g.Instances {
		i := slices.IndexFunc(g.Profiles, func(p host.Profile) bool { return p.ID == in.Profile })
		for _, c := range in.Compute {
			if i < 0 || c.Share == (host.Share{}) {
				return nil, fmt.Sprintf("the driver does not say what the partitions of GPU %s have", g.Address)
			}
			all = append(all, migDevice{g.Name, migName(g, g.Profiles[i], c), c.Share})
		}
	}
	return all, ""
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
