// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// Machine is a booted host without a test around it; tests use Host.
type Machine struct {
	// Name is unique on this machine.
	Name    string
	Options Options

	dir    string   // its folder in the cache
	lock   *os.File // held as long as a process uses the host; nil once it is kept
	groups cgroups
	leader int           // its PID 1, as seen from here; 0 while it is off
	ended  chan struct{} // closed when its systemd-nspawn has ended; nil if another process booted it
	image  sync.Once     // the container image is imported
}

// record is what another process must know of a host, in the file "host" of its folder.
type record struct {
	Options Options
	Groups  cgroups
	Kept    bool
}

const (
	recordFile = "host"
	lockName   = "lock"
)

// Start boots a fresh host.
func Start(ctx context.Context, o Options) (*Machine, error) {
	if os.Getuid() != 0 {
		return nil, errMissing{"cannot boot a host: it needs root"}
	}
	if err := missingTool(); err != nil {
		return nil, err
	}
	if o.Dist != RHELish && !slices.Contains(Dists(), o.Dist) {
		return nil, fmt.Errorf("cannot boot %q: known are %s and %s", o.Dist, strings.Join(Dists(), ", "), RHELish)
	}
	if err := raiseInotifyLimit(); err != nil {
		return nil, err
	}

	layers, err := layersOf(o)
	if err != nil {
		return nil, err
	}
	binary, err := builtBinary()
	if err != nil {
		return nil, err
	}
	if err := CleanHosts(func(string) {}); err != nil {
		return nil, err
	}

	m, err := newMachine(o)
	if err != nil {
		return nil, err
	}
	if err := m.start(ctx, layers, binary); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot boot %s: %w", o, err), m.Down())
	}
	return m, nil
}

// start makes the host's disk and boots it.
func (m *Machine) start(ctx context.Context, layers []string, binary string) error {
	if m.Options.Disk {
		if err := m.makeDisk(ctx); err != nil {
			return err
		}
	}

	if err := m.furnish(binary); err != nil {
		return err
	}
	if err := m.mount(layers); err != nil {
		return err
	}

	groups, err := newCgroups("gpuadm-lab-" + m.Name)
	m.groups = groups // even of an error: Down removes those that were made
	if err != nil {
		return err
	}
	if err := m.save(false); err != nil {
		return err
	}
	return m.boot(ctx)
}

// builtBinary is bin/gpuadm of the source tree.
func builtBinary() (string, error) {
	binary, err := filepath.Abs(filepath.Join(Source(), "bin", "gpuadm"))
	if err != nil {
		return "", fmt.Errorf("cannot find gpuadm to put in a host: %w", err)
	}
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("cannot find gpuadm to put in a host: %w; make build makes it", err)
	}
	return binary, nil
}

// newMachine makes a host's folder and takes its lock.
func newMachine(o Options) (*Machine, error) {
	hosts, err := hostsDir()
	if err != nil {
		return nil, err
	}
	unlock, err := lockHosts()
	if err != nil {
		return nil, err
	}
	defer unlock()

	m := &Machine{Name: o.Dist + "-" + strings.ToLower(rand.Text()[:6]), Options: o}
	m.dir = filepath.Join(hosts, m.Name)
	// state is /var/lib/containerd: an overlay cannot lie on an overlay, so it is a folder of the
	// disk.
	for _, sub := range []string{"upper", "work", "root", "state"} {
		if err := os.MkdirAll(m.path(sub), 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a host's folder: %w", err)
		}
	}

	m.lock, err = parts.Lock(m.path(lockName), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the host: %w", err)
	}
	return m, nil
}

// mount lays the host's own layer over the cached ones.
func (m *Machine) mount(layers []string) error {
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s",
		strings.Join(layers, ":"), m.path("upper"), m.path("work"))
	if err := syscall.Mount("overlay", m.path("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount an overlay on %s (its file system must be a real one, such as ext4 or xfs): %w", m.dir, err)
	}
	return nil
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *Machine) save(kept bool) error {
	text, err := json.Marshal(record{
		Options: m.Options,
		Groups:  m.groups,
		Kept:    kept,
	})
	if err == nil {
		err = os.WriteFile(m.path(recordFile), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot write the host's record: %w", err)
	}
	return nil
}

// Keep leaves the host running when this process ends.
func (m *Machine) Keep() error {
	if err := m.save(true); err != nil {
		return err
	}
	_ = m.lock.Close()
	m.lock = nil
	return nil
}

// Down ends the host and drops all that it wrote.
func (m *Machine) Down() error {
	err := m.off()
	if unmountErr := m.unmount(); unmountErr != nil {
		return errors.Join(err, unmountErr)
	}

	err = errors.Join(err, m.groups.remove())
	// systemd-nspawn leaves this folder when it is killed.
	_ = os.Remove("/run/systemd/nspawn/propagate/" + m.nspawnName())
	if removeErr := m.remove(); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("cannot remove the host's folder: %w", removeErr))
	}
	if m.lock != nil {
		_ = m.lock.Close()
	}
	return err
}

// unmount unmounts the host's disks.
func (m *Machine) unmount() error {
	if err := unmount(m.path("root")); err != nil {
		return err
	}
	return unmount(m.path(diskMount))
}

// unmount unmounts what is mounted at a place. A mount may lie on another one, and may be in use for
// a moment.
func unmount(place string) error {
	var err error
	for range 100 {
		err = syscall.Unmount(place, 0)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT) {
			return nil // nothing is mounted there
		}
		if err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}

	if err != nil {
		return fmt.Errorf("cannot unmount %s: %w", place, err)
	}
	return nil
}

// remove removes the host's folder, out of the others' sight first: the lock in it goes before all
// of the rest has gone, and a process that opens the host meanwhile would make another lock there.
func (m *Machine) remove() error {
	removed := filepath.Join(filepath.Dir(filepath.Dir(m.dir)), goneHost+m.Name)
	if err := os.Rename(m.dir, removed); err != nil {
		return err
	}
	return os.RemoveAll(removed)
}

// Open takes over a host that another process left, by its name or folder. It fails while that
// process uses the host.
func Open(name string) (*Machine, error) {
	hosts, err := hostsDir()
	if err != nil {
		return nil, err
	}
	m := &Machine{Name: filepath.Base(name)}
	m.dir = filepath.Join(hosts, m.Name)
	if _, err := os.Stat(m.dir); err != nil {
		return nil, fmt.Errorf("cannot find the host %s: %w", m.Name, err)
	}
	m.lock, err = parts.Lock(m.path(lockName), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return nil, fmt.Errorf("cannot open the host %s, a process uses it: %w", m.Name, err)
	}

	// The record is missing if the process was killed while it made the host.
	r, err := readRecord(m.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the host's record: %w", err)
	}
	m.Options = r.Options
	m.groups = r.Groups
	m.leader = m.findLeader()
	return m, nil
}

// readRecord reads the record of the host in a folder.
func readRecord(dir string) (record, error) {
	var r record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// Save keeps what a host has written on its disk, as a folder of the cache for Options.Over of
// later hosts. The host is shut down for it, and stays off.
func (m *Machine) Save(ctx context.Context, place string) error {
	if m.leader != 0 {
		_ = runInside(m.inside(ctx, "systemctl", "poweroff")) // it may end before nsenter does
		if err := m.waitOff(bootLimit); err != nil {
			return err
		}
	}

	if err := m.off(); err != nil {
		return err
	}

	return Cached(place, func(scratch string) error {
		// With the overlay's own marks: whiteouts are devices, opaque folders have an attribute.
		disk := m.path("upper") + "/."
		_, err := parts.Run(ctx, "", nil, "cp", "--archive", "--reflink=auto", disk, scratch)
		if err != nil {
			return fmt.Errorf("cannot save the host's disk: %w", err)
		}
		return os.Chmod(scratch, 0o755)
	})
}
