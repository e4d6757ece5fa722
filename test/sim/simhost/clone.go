// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host/files"
)

// Keep has the node keep a clone of itself before each of its touches, as a power cut there leaves
// it: Kept returns a copy.
func (n *Node) Keep() { n.kept = map[int]*Node{} }

// Kept returns what the node was before a touch, with the power off; nil if that touch never came.
func (n *Node) Kept(touch int) *Node {
	if n.kept[touch] == nil {
		return nil
	}
	return n.kept[touch].Clone()
}

// Clone is a machine of its own that is as this one is now. Servers on its network and daemons that
// a test answers for are the same.
func (n *Node) Clone() *Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clone()
}

func (n *Node) clone() *Node {
	c := &Node{
		live:   n.live,
		baking: n.baking,
		plain:  n.plain,

		now:    n.now,
		booted: n.booted,
		bootID: n.bootID,
		boots:  n.boots,
		off:    n.off,

		touches:  n.touches,
		syncs:    n.syncs,
		cutAt:    n.cutAt,
		failures: maps.Clone(n.failures),

		units:    map[string]*daemon{},
		locked:   n.locked,
		lastPID:  n.lastPID,
		commands: n.commands,
		programs: maps.Clone(n.programs),
		servers:  maps.Clone(n.servers),
		daemons:  maps.Clone(n.daemons),

		driver: n.driver,
		cuda:   n.cuda,
	}
	c.Files = files.New(disk{n: c})
	c.raw = files.New(disk{n: c, raw: true})
	c.root = n.root.clone(map[*inode]*inode{})
	for name, d := range n.units {
		copied := *d
		c.units[name] = &copied
	}

	c.driver.deaf = maps.Clone(n.driver.deaf)
	c.driver.passed = maps.Clone(n.driver.passed)
	c.driver.gpus = nil
	for _, g := range n.driver.gpus {
		copied := shown(*g)
		c.driver.gpus = append(c.driver.gpus, &copied)
	}

	return c
}

// State is a digest of what a program can see of the machine: on two nodes with the same State a
// program does the same. Of times only their order counts.
func (n *Node) State() string {
	sum := sha256.New()
	fmt.Fprint(sum, n.Tree(), n.Units())
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, g := range n.driver.gpus {
		fmt.Fprintf(sum, "%+v\n", *g)
	}
	times := map[string]time.Time{"now": n.now, "booted": n.booted}
	for name, d := range n.units {
		times[name] = d.started
	}
	n.root.times("/", times)

	byTime := func(a, b string) int {
		return cmp.Or(times[a].Compare(times[b]), strings.Compare(a, b))
	}
	last := time.Time{}
	for _, name := range slices.SortedFunc(maps.Keys(times), byTime) {
		fmt.Fprintln(sum, name, times[name].Equal(last))
		last = times[name]
	}

	return string(sum.Sum(nil))
}

func (i *inode) times(name string, all map[string]time.Time) {
	all[name] = i.ctime
	all[name+" content"] = i.modified()
	for below, ino := range i.names {
		ino.times(path.Join(name, below), all)
	}
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
	c.names = cloned(i.names, done)
	c.syncedNames = cloned(i.syncedNames, done)
	c.pending = nil
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
