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
	ended  chan struct{} // closed when its systemd-nspawn has ended; nil for a host that another process booted
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
	if err := moreWatches(); err != nil {
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
	err = m.furnish(binary)
	if err == nil {
		err = m.mount(layers)
	}
	if err == nil {
		m.groups, err = newCgroups("gpuadm-lab-" + m.Name)
	}
	if err == nil {
		err = m.save(false)
	}
	if err == nil {
		err = m.boot(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot boot %s: %w", o, err), m.Down())
	}
	return m, nil
}

// layersOf finds the cached layers of a host, the topmost first.
func layersOf(o Options) (layers []string, err error) {
	if o.Containerd != "" {
		layer, err := engineLayer(o.Containerd)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	find := Rootfs
	switch {
	case o.Docker && o.Dist != dockerDist:
		return nil, fmt.Errorf("cannot boot a host with Docker on %s: only on %s", o, dockerDist)
	case o.SSH && (o.Dist != sshDist || o.Headers || o.Kubelet):
		return nil, fmt.Errorf("cannot boot a host with an SSH server on %s: only on %s", o, sshDist)
	case o.Kubelet && (o.Headers || !slices.Contains(Dists(), o.Dist)):
		return nil, fmt.Errorf("cannot boot a host with kubelet on %s: only on %s", o, strings.Join(Dists(), " and "))
	case o.Docker:
		find = dockerLayer().over
	case o.Kubelet:
		find = kubeletLayer().over
	case o.SSH:
		find = sshLayer().over
	case o.Kernel:
		find = kernelLayer().over
	case o.Headers && o.Dist == RHELish: // they are Debian's, below what makes a RHEL of it
		rhel, err := Rootfs(o.Dist)
		if err != nil {
			return nil, err
		}
		layers, o.Dist = append(layers, rhel[0]), "trixie"
		fallthrough
	case o.Headers:
		find = headersLayer().over
	}
	below, err := find(o.Dist)
	layers = append(layers, below...)
	if o.Over != "" {
		layers = append([]string{o.Over}, layers...)
	}
	return layers, err
}

// Source is the source tree that we are run in: tests run in their package's folder, commands
// mostly at its top.
func Source() string {
	dir := "."
	for range 5 {
		if _, err := os.Stat(filepath.Join(dir, "test", "lab", "lab.go")); err == nil {
			return dir
		}
		dir = filepath.Join(dir, "..")
	}
	return "." // where the caller then says that a part is missing
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
		if err := os.MkdirAll(filepath.Join(m.dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a host's folder: %w", err)
		}
	}
	if m.lock, err = parts.Lock(filepath.Join(m.dir, lockName), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("cannot lock the host: %w", err)
	}
	return m, nil
}

// lockHosts keeps another process from taking a host that is being made for one that was left.
func lockHosts() (unlock func(), err error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	file, err := parts.Lock(filepath.Join(cache, ".hosts.lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the hosts: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

func hostsDir() (string, error) {
	cache, err := CacheDir()
	return filepath.Join(cache, "hosts"), err
}

// mount lays the host's own layer over the cached ones.
func (m *Machine) mount(layers []string) error {
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(layers, ":"), m.path("upper"), m.path("work"))
	if err := syscall.Mount("overlay", m.path("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount an overlay on %s (its file system must be a real one, such as ext4 or xfs): %w", m.dir, err)
	}
	return nil
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *Machine) save(kept bool) error {
	text, err := json.Marshal(record{m.Options, m.groups, kept})
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
	m.lock, _ = nil, m.lock.Close()
	return nil
}

// Down ends the host and drops all that it wrote.
func (m *Machine) Down() error {
	err := m.off()
	for range 100 { // a mount may lie on another one
		uerr := syscall.Unmount(m.path("root"), 0)
		if errors.Is(uerr, syscall.EINVAL) || errors.Is(uerr, syscall.ENOENT) {
			break // nothing is mounted there
		}
		if uerr != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if uerr := syscall.Unmount(m.path("root"), 0); uerr != nil && !errors.Is(uerr, syscall.EINVAL) && !errors.Is(uerr, syscall.ENOENT) {
		return errors.Join(err, fmt.Errorf("cannot unmount %s: %w", m.path("root"), uerr))
	}
	err = errors.Join(err, m.groups.remove())
	// systemd-nspawn leaves it when it is killed.
	_ = os.Remove("/run/systemd/nspawn/propagate/" + m.nspawnName())
	if rerr := m.remove(); rerr != nil {
		err = errors.Join(err, fmt.Errorf("cannot remove the host's folder: %w", rerr))
	}
	if m.lock != nil {
		_ = m.lock.Close()
	}
	return err
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

// goneHost begins the name, in the cache, of the folder of a host that is being removed.
const goneHost = ".gone-"

// Hosts names the hosts that are there, those of running tests as well.
func Hosts() ([]string, error) {
	hosts, err := hostsDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(hosts)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list hosts: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Open takes over a host that another process left, by its name or folder. It fails while that
// process is at it.
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
	var r record
	text, err := os.ReadFile(m.path(recordFile))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // missing: its process was killed while it made the host
		return nil, fmt.Errorf("cannot read the host's record: %w", err)
	}
	m.Options, m.groups = r.Options, r.Groups
	m.leader = m.findLeader()
	return m, nil
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
		if _, err := parts.Run(ctx, "", nil, "cp", "--archive", "--reflink=auto", m.path("upper")+"/.", scratch); err != nil {
			return fmt.Errorf("cannot save the host's disk: %w", err)
		}
		return os.Chmod(scratch, 0o755)
	})
}

// CleanHosts takes down what killed processes have left: hosts that no process uses and that were
// not kept.
func CleanHosts(log func(string)) error { return cleanHosts(log, leftover) }

// Clean takes down all hosts that no process uses, and removes the cache.
func Clean(log func(string)) error {
	if err := cleanHosts(log, func(string) bool { return true }); err != nil {
		return err
	}
	if left, err := Hosts(); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("cannot remove the caches: %v are in use", left))
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(cache)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		log("removing " + e.Name())
		err = errors.Join(err, os.RemoveAll(filepath.Join(cache, e.Name())))
	}
	return err
}

func cleanHosts(log func(string), which func(dir string) bool) error {
	names, err := Hosts()
	if err != nil || len(names) == 0 {
		return err
	}
	unlock, err := lockHosts()
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeGone(); err != nil {
		return err
	}
	for _, name := range names {
		m, oerr := Open(name)
		if oerr != nil {
			continue // in use
		}
		if !which(m.dir) {
			_ = m.lock.Close()
			continue
		}
		log("taking down " + name)
		err = errors.Join(err, m.Down())
	}
	return err
}

// leftover says whether a host was not kept.
func leftover(dir string) bool {
	var r record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	return err != nil || json.Unmarshal(text, &r) != nil || !r.Kept
}

// removeGone ends what processes were killed at: hosts of which the folder was left half removed.
func removeGone() error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	removed, err := filepath.Glob(filepath.Join(cache, goneHost+"*"))
	for _, dir := range removed {
		err = errors.Join(err, os.RemoveAll(dir)) // another process may be at the same one, which harms neither
	}
	return err
}
