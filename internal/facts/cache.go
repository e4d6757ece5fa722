// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"reflect"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Cache keeps the costly facts from one Gather to the next: what a cloud answered, for a run; and
// parsed texts. A different View resets it. The zero value is empty and usable.
type Cache struct {
	// Memory knows what this machine's modules and programs said; nil: the Cache has
	// one of its own.
	Memory *recall.Memory

	view   host.View
	memory *recall.Memory // Memory, or the Cache's own
	asked  cloudAnswers
	texts  *toml.Texts

	gpus []PCI // found by GPUs, for the next Gather
	rdma bool  // found with gpus
}

// GPUs returns the GPUs of Gather's facts, from the PCI bus alone. The next Gather takes them over.
func (c *Cache) GPUs(v host.View) ([]PCI, error) {
	g := c.begin(v)
	all := g.pci()
	if g.err == nil {
		c.gpus = all
		c.rdma = g.rdma
	}
	return all, g.err
}

// Changes says that the machine is changed: the next Gather looks for GPUs again.
func (c *Cache) Changes() { c.gpus = nil }

// begin starts a gathering. It reads each file once, so that all facts come from the same bytes.
func (c *Cache) begin(v host.View) *gathering {
	machine := view.Machine(v)
	same := c.view != nil && reflect.ValueOf(machine).Comparable() && c.view == machine
	if !same { // another machine, or a view that cannot be compared
		*c = Cache{
			Memory: c.Memory,
			view:   machine,
			memory: cmp.Or(c.Memory, new(recall.Memory)),
			texts:  new(toml.Texts),
		}
	}

	return &gathering{v: view.Gathering(v), cache: c, texts: c.texts}
}

// Keep writes down what the machine's modules and programs said, for the next run of this boot.
func (c *Cache) Keep(h host.Host) { c.memory.Keep(h) }

// memory is what files of this machine have said; nil if nothing is remembered.
func (g *gathering) memory() *recall.Memory {
	if g.cache == nil {
		return nil
	}
	return g.cache.memory
}
