// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"reflect"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Cache keeps the costly facts from one Gather to the next: versions of programs, and modules,
// which hold as long as the file's path, size and ctime do; what a cloud answered, for a run; and
// parsed texts.
// Given another View it starts from nothing. The zero value is empty and usable.
type Cache struct {
	view    host.View
	modules *ModuleCache
	asked   asked
	gpus    []PCI // found by GPUs, for the next Gather; and rdma with them
	rdma    bool
	texts   *toml.Texts
}

// look reads each file once, so that all facts are of the same bytes.
func (c *Cache) begin(v host.View) *gathering {
	of := view.Machine(v)
	if c.view == nil || !reflect.ValueOf(of).Comparable() || c.view != of {
		*c = Cache{view: of, texts: new(toml.Texts), modules: new(ModuleCache)} // another machine, or a view that cannot be compared
	}
	return &gathering{v: view.Gathering(v), cache: c, texts: c.texts}
}

// GPUs are the GPUs of Gather's facts, from the PCI bus alone. The next Gather takes them as they
// were found here.
func (c *Cache) GPUs(v host.View) ([]PCI, error) {
	g := c.begin(v)
	all := g.pci()
	if g.err == nil {
		c.gpus, c.rdma = all, g.rdma
	}
	return all, g.err
}

// Changes says that the machine is changed: what GPUs found need not hold.
func (c *Cache) Changes() { c.gpus = nil }
