// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// driverConfig is the table [driver] of sim.toml. Without one and without [[gpu]] there is no
// driver.
type driverConfig struct {
	Version string
	NVML    string // the driver's version if not said
	CUDA    string
	Module  string // a file; the driver answers only if it is there, and its version is what the file says
	Why     string // why no driver answers
	Try     string
	Code    string // NVML's name of that
}

// gpuConfig is one [[gpu]]: a model with what is special about it, or one that was recorded in
// full.
type gpuConfig struct {
	host.GPU
	Model    string           // as gpumodels.go lists them
	Count    int              // of GPUs like this; 1 if not said
	Instance []instanceConfig // GPU instances by their profile's name

	PassThrough bool // to a virtual machine: it does not reset itself
}

// instanceConfig is a GPU instance that is there when the node starts.
type instanceConfig struct {
	Profile string
	Start   int
	Compute []int // compute slices of the compute instances in it; one over the whole instance if not said
	Clients []int
}

// configureGPUs makes the driver and the GPUs.
func (n *Node) configureGPUs(d *driverConfig, gpus []gpuConfig) error {
	if d == nil && len(gpus) == 0 {
		return nil
	}
	if d == nil {
		d = &driverConfig{Version: "580.95.05", CUDA: "13.0"}
	}
	n.driver = driver{
		version: d.Version,
		nvml:    d.NVML,
		cuda:    d.CUDA,
		module:  d.Module,
		passed:  map[string]bool{},
		deaf:    map[int]bool{},
	}
	if d.Why != "" {
		n.driver.none = &host.NoDriver{Why: d.Why, Try: d.Try, Code: d.Code}
	}
	for i, c := range gpus {
		if c.Count == 0 {
			c.Count = 1
		}
		for range c.Count {
			if err := n.addGPU(c); err != nil {
				return fmt.Errorf("[[gpu]] %d: %w", i+1, err)
			}
		}
	}

	return nil
}

// addGPU makes one GPU. What is said of it goes over what its model says.
func (n *Node) addGPU(c gpuConfig) error {
	g := c.GPU
	if c.Model != "" {
		made, ok := model(c.Model)
		if !ok {
			return fmt.Errorf("there is no model %q", c.Model)
		}
		number(&made, len(n.driver.gpus))
		describe(&made, g)
		g = made
	}

	if g.Address == "" {
		return errors.New("neither model nor address")
	}

	n.driver.gpus = append(n.driver.gpus, &g)
	n.driver.passed[g.Address] = c.PassThrough
	for _, in := range c.Instance {
		if err := place(&g, in); err != nil {
			return err
		}
	}

	return nil
}

// number gives a GPU the names of the nth one, from 0.
func number(g *host.GPU, nth int) {
	g.Address = fmt.Sprintf("0000:%02x:00.0", 0x17+nth*8)
	g.Index = nth
	g.Minor = nth
	g.UUID = fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", nth)
}

// describe gives a GPU of a model what sim.toml says of it.
func describe(g *host.GPU, said host.GPU) {
	g.Mode = said.Mode && g.MIG
	g.Pending = (said.Mode || said.Pending) && g.MIG
	g.Clients = said.Clients
	g.Persistent = said.Persistent
	g.Lost = said.Lost

	g.RemapFails = said.RemapFails
	g.RemapWaits = said.RemapWaits
	g.Uncorrected = said.Uncorrected
	g.Slowed = said.Slowed
	g.Licence = said.Licence
	g.Recovery = said.Recovery
	g.LinksDown = said.LinksDown
	g.Prohibited = said.Prohibited
	g.ECCWaits = said.ECCWaits
	g.Celsius = said.Celsius
	g.SlowsAt = said.SlowsAt
	g.PowerLimit = said.PowerLimit
	g.PowerUsual = said.PowerUsual

	g.ECC = cmp.Or(said.ECC, g.ECC)
	g.Address = cmp.Or(said.Address, g.Address)
	if said.Fabric.State != "" {
		g.Fabric = said.Fabric
	}
}

// place makes an instance that is there from the start.
func place(g *host.GPU, in instanceConfig) error {
	i := slices.IndexFunc(g.Profiles, func(p host.Profile) bool {
		return p.Name == in.Profile
	})
	if i < 0 {
		return fmt.Errorf("%s has no profile %q", g.Name, in.Profile)
	}
	p := g.Profiles[i]
	at := slices.IndexFunc(p.Places, func(s host.Span) bool { return s.Start == in.Start })
	if at < 0 {
		return fmt.Errorf("%s cannot lie at %d", p.Name, in.Start)
	}

	id, code := createInstance(g, p.ID, p.Places[at])
	if code != "" {
		return fmt.Errorf("%s at %d: %s", p.Name, in.Start, code)
	}
	if in.Compute == nil {
		in.Compute = []int{p.Slices}
	}
	made := instance(g, id)
	for _, size := range in.Compute {
		c := slices.IndexFunc(p.Compute, func(c host.ComputeProfile) bool {
			return c.Slices == size
		})
		if c < 0 {
			return fmt.Errorf("%s has no compute instance of %d slices", p.Name, size)
		}
		if _, code := createCompute(g, made, p.Compute[c].ID, host.Span{}); code != "" {
			return fmt.Errorf("%s: compute instance of %d slices: %s", p.Name, size, code)
		}
	}

	made.Clients = slices.Clone(in.Clients)
	for _, pid := range in.Clients {
		if !slices.Contains(g.Clients, pid) {
			g.Clients = append(g.Clients, pid)
		}
	}

	slices.Sort(g.Clients)
	return nil
}

// migUUID is the name of the device of a compute instance.
func migUUID(g *host.GPU, instance, compute int) string {
	uuid := strings.TrimPrefix(g.UUID, "GPU-")
	return fmt.Sprintf("MIG-%s-%02x%02x", uuid[:min(31, len(uuid))], instance, compute)
}
