// SPDX-License-Identifier: Apache-2.0

// Package simhost is a simulated machine in memory: files, units, commands, the run lock, and a
// power switch.
//
// It implements the same door as a real machine, and its files run through the same code
// (files.Files) over a disk that forgets at a power cut what was not synced. Tests cut its power at
// every touch; `make demo` shows it around.
package simhost

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// ErrPower is what everything answers between a power cut and the next Boot.
var ErrPower = errors.New("power cut")

// tick is how far the clock advances at each touch: far enough that ctimes and process starts
// differ.
const tick = 50 * time.Millisecond

// Node is a simulated machine.
type Node struct {
	*files.Files // the machine's files, each touch counted

	raw *files.Files // the same files for daemons and commands: all their writes are one touch

	mu       sync.Mutex
	root     *inode
	live     bool
	baking   bool // an image in which programs run
	now      time.Time
	booted   time.Time
	bootID   string
	boots    int
	off      bool
	touches  int
	syncs    int
	cutAt    int // the touch at which power is cut, -1 for none
	failures map[int]error
	meddler  func(root files.Folder) // another process
	meddleIn int                     // and after how many operations of the disk it comes
	kept     map[int]*Node           // nil unless Keep was called
	plain    bool                    // renames know no flags
	units    map[string]*daemon
	commands []command
	programs map[string]Program
	violated []string
	locked   bool
	lastPID  int
	driver   driver
	cuda     func(shown []string) host.CUDA                                 // nil: as the driver answers
	servers  map[string]http.Handler                                        // by host
	daemons  map[string]func(method string, request []byte) ([]byte, error) // by socket
}

// View is the node for looking only: what it returns cannot be turned back into a Host.
func (n *Node) View() host.View { return struct{ host.View }{n} }

// Root is host.View's: a simulated node is a whole machine.
func (n *Node) Root() string {
	if n.Live() {
		return "/"
	}
	return "/simulated"
}

// Live is host.View's.
func (n *Node) Live() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live
}

// Runs is host.View's.
func (n *Node) Runs() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live || n.baking
}

// Now is host.View's. The clock advances at touches only.
func (n *Node) Now() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// Advance lets time go by.
func (n *Node) Advance(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = n.now.Add(d)
}

// BootID is what /proc/sys/kernel/random/boot_id says.
func (n *Node) BootID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bootID
}

// Lock is host.Host's.
func (n *Node) Lock() (func(), error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off {
		return nil, ErrPower
	}
	if n.locked {
		return nil, &host.Busy{PID: 4711, Command: "gpuadm apply"}
	}
	n.locked = true
	boots := n.boots
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.boots == boots { // not the lock of a later boot
			n.locked = false
		}
	}), nil
}

// touch runs one touch, unless power is cut before it or it is to fail.
func (n *Node) touch(do func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off {
		return ErrPower
	}
	nth := n.touches
	if n.cutAt >= 0 && nth >= n.cutAt {
		n.off = true
		return ErrPower
	}
	if n.kept != nil {
		n.kept[nth] = n.clone()
		n.kept[nth].off = true
	}
	n.touches++
	if err := n.failures[nth]; err != nil {
		delete(n.failures, nth)
		return err
	}
	n.now = n.now.Add(tick)
	defer n.unloads()()
	return do()
}

// look runs what only looks.
func (n *Node) look(do func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off {
		return ErrPower
	}
	return do()
}

// Touches counts the touches so far: every single step that changes the disk or syncs it, every Do
// and every unit job.
func (n *Node) Touches() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.touches
}

// Syncs counts those of the touches that wait for the disk.
func (n *Node) Syncs() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.syncs
}

// CutAt cuts the power before the touch with this number, counted from 0 as Touches counts; -1 does
// not.
func (n *Node) CutAt(touch int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutAt = touch
}

// Fail makes one touch fail with an error, as a full disk would; all others go on.
func (n *Node) Fail(touch int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failures[touch] = err
}

// Meddle has another process change files right before an operation of the disk, counted from 0 and
// from now: looks count too. What it does is not a touch, and durable at once.
func (n *Node) Meddle(at int, do func(root files.Folder)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.meddleIn = at
	n.meddler = do
}

// Meddled reports whether what Meddle was given has been done.
func (n *Node) Meddled() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.meddler == nil
}

// meddle is called before each operation of the disk; the node is locked.
func (n *Node) meddle() {
	if n.meddler == nil {
		return
	}
	if n.meddleIn--; n.meddleIn < 0 {
		do := n.meddler
		n.meddler = nil
		do(folder{disk{n: n, raw: true}, n.root})
	}
}

// PlainRenames has the disk know no flags of renameat2(2), as some file systems do not.
func (n *Node) PlainRenames() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plain = true
}

// Revive makes a power cut one of the process alone: it was killed, and the machine runs on.
func (n *Node) Revive() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off = false
	n.locked = false
	n.cutAt = -1
}

// Off reports whether the power is cut.
func (n *Node) Off() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.off
}

// Violations lists commands that were asked although they change something.
func (n *Node) Violations() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.violated...)
}

var _ host.Host = (*Node)(nil)
