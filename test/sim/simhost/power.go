// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// Loss says what of the unsynced work a power cut takes. Synced work always stays.
type Loss int64

const (
	// LoseAll takes all of it, content and names.
	LoseAll Loss = -1 - iota
	// LoseData keeps names and attributes and takes content: the classic empty file after a rename.
	LoseData
	// LoseNothing keeps all, as when the disk was quick.
	LoseNothing
)

// Random takes and keeps at random, each change by itself: content may be cut short, a later name
// may stay where an earlier is lost. File systems without a journal may do all of that.
func Random(seed uint32) Loss { return Loss(seed) }

func (l Loss) String() string {
	switch l {
	case LoseAll:
		return "lose all"
	case LoseData:
		return "lose data"
	case LoseNothing:
		return "lose nothing"
	}
	return fmt.Sprintf("random %d", int64(l))
}

// Boot brings the node up again after a power cut (or cuts it now): what was not synced is lost as
// loss says, /run is empty, the boot ID is new, the run lock free, enabled units start and read
// their files. No touch is cut or fails any more.
func (n *Node) Boot(loss Loss) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &cut{
		loss:   loss,
		random: rand.New(rand.NewPCG(uint64(loss), 0)),
		seen:   map[*inode]bool{},
	}
	c.lose(n.root)
	n.boot()
}

// Reboot is a clean one: nothing is lost but /run.
func (n *Node) Reboot() { n.Boot(LoseNothing) }

// Image turns the node off and into an image: from then on only its files can be read and changed.
func (n *Node) Image() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.live = false
}

// Folder is Image after a bake: no program runs in it any more.
func (n *Node) Folder() {
	n.Image()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.baking = false
}

// Bake is Image, and the image's programs run in it.
func (n *Node) Bake() {
	n.Image()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.baking = true
}

// FirstBoot starts an image as a machine: it is live from then on.
func (n *Node) FirstBoot() {
	n.mu.Lock()
	n.live = true
	n.baking = false
	n.mu.Unlock()
	n.Reboot()
}

// boot starts what a boot starts; the node is locked.
func (n *Node) boot() {
	if run := n.root.names["run"]; run != nil && n.live {
		run.names = map[string]*inode{}
		run.sync()
	}
	n.off = false
	n.locked = false
	n.cutAt = -1
	clear(n.failures)
	n.now = n.now.Add(30 * time.Second)
	n.booted = n.now
	n.boots++
	for _, g := range n.driver.gpus {
		boot(g)
	}
	n.bootID = fmt.Sprintf("00000000-0000-4000-8000-%012d", n.boots)
	_ = n.setBootID() // it was set before, so it can be set
	if n.live {
		n.startEnabled()
	}
}

// cut is a power cut.
type cut struct {
	loss   Loss
	random *rand.Rand
	seen   map[*inode]bool
}

// keep decides one question.
func (c *cut) keep() bool {
	return c.loss == LoseNothing || c.loss >= 0 && c.random.IntN(2) == 0
}

// lose takes from an inode, and from all below it that is still found, what was not synced.
func (c *cut) lose(i *inode) {
	if c.seen[i] || i.kernel {
		return
	}
	c.seen[i] = true
	c.loseAttrs(i)
	if !i.mode.IsDir() {
		i.sync()
		return
	}

	if c.loss != LoseNothing && c.loss != LoseData {
		names := maps.Clone(i.syncedNames)
		for _, change := range i.pending {
			if c.keep() {
				change.apply(names)
			}
		}

		i.names = names
	}

	for _, name := range slices.Sorted(maps.Keys(i.names)) {
		c.lose(i.names[name])
	}
	i.sync()
}

func (c *cut) loseAttrs(i *inode) {
	old := i.synced
	switch c.loss {
	case LoseNothing:
	case LoseData:
		i.data = old.data
	case LoseAll:
		i.attrs = old
	default:
		if !c.keep() {
			i.mode = old.mode
		}
		if !c.keep() {
			i.uid = old.uid
			i.gid = old.gid
		}
		if !c.keep() {
			i.xattrs = old.xattrs
		}
		if !c.keep() {
			i.data = old.data
		} else if more := len(i.data) - len(old.data); more > 0 && c.keep() {
			i.data = i.data[:len(old.data)+c.random.IntN(more+1)] // files only grow: torn
		}
	}
}
