// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"maps"

	"github.com/gpuadm/gpuadm/internal/host/files"
)

// Clone is a machine of its own that is as this one is now. Servers on its network and daemons that a test answers for are the same.
func (n *Node) Clone() *Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &Node{
		live: n.live, baking: n.baking, now: n.now, booted: n.booted, bootID: n.bootID, boots: n.boots, off: n.off, touches: n.touches, syncs: n.syncs,
		cutAt: n.cutAt, failures: maps.Clone(n.failures), plain: n.plain, units: map[string]*daemon{}, commands: n.commands, programs: maps.Clone(n.programs),
		locked: n.locked, lastPID: n.lastPID, driver: n.driver, cuda: n.cuda, servers: maps.Clone(n.servers), daemons: maps.Clone(n.daemons),
	}
	c.Files, c.raw = files.New(disk{n: c}), files.New(disk{n: c, raw: true})
	c.root = n.root.clone(map[*inode]*inode{})
	for name, d := range n.units {
		copied := *d
		c.units[name] = &copied
	}
	c.driver.gpus, c.driver.deaf, c.driver.passed = nil, maps.Clone(n.driver.deaf), maps.Clone(n.driver.passed)
	for _, g := range n.driver.gpus {
		copied := shown(*g)
		c.driver.gpus = append(c.driver.gpus, &copied)
	}
	return c
}

// clone copies an inode and all below it; hard links stay links.
func (i *inode) clone(done map[*inode]*inode) *inode {
	if i == nil {
		return nil
	}
	if c := done[i]; c != nil {
		return c
	}
	c := *i
	done[i] = &c
	c.names, c.syncedNames, c.pending = cloned(i.names, done), cloned(i.syncedNames, done), nil
	for _, change := range i.pending {
		c.pending = append(c.pending, cloned(change, done))
	}
	return &c
}

func cloned[M ~map[string]*inode](names M, done map[*inode]*inode) M {
	if names == nil {
		return nil
	}
	all := make(M, len(names))
	for name, i := range names {
		all[name] = i.clone(done)
	}
	return all
}
