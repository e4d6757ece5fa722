// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
)

// daemon is a unit as it runs. Whether it is enabled is what its files say, as on a real machine.
type daemon struct {
	unit
	run
	refuses *regexp.Regexp
}

// run is the state of a unit's process.
type run struct {
	active  string
	pid     int
	started time.Time
	loaded  string // digest of what it read at its start
}

const vendorFolder = "/usr/lib/systemd/system/"

// unitFile gives a declared unit the files it lacks.
func (n *Node) unitFile(u unit) error {
	is, err := systemd.UnitOf(n.raw, u.Name)
	if err := notLater(err); err != nil {
		return err
	}
	exists := is.Load != "not-found"
	if u.Load == "not-found" || exists && u.Enabled == is.Enabled {
		return nil
	}
	if !exists {
		if err := n.writeUnit(u); err != nil {
			return err
		}
	}

	change := ""
	switch u.Enabled {
	case "enabled":
		change = "enable"
	case "masked":
		change = "mask"
	default:
		return nil
	}

	if _, err := n.folderFor("/etc/systemd/system/x"); err != nil {
		return err
	}
	return notLater(systemd.SetUnitOf(n.raw, u.Name, host.UnitChange{File: change}))
}

// writeUnit writes a unit's file as a package would.
func (n *Node) writeUnit(u unit) error {
	text := "[Service]\nExecStart=/usr/bin/true\n"
	if u.Name == "containerd.service" { // whose options say what it reads
		text = "[Service]\nExecStart=/usr/bin/containerd\n"
	}
	switch u.Enabled {
	case "enabled", "disabled", "":
		text += "\n[Install]\nWantedBy=multi-user.target\n"
	}

	if _, err := n.folderFor(vendorFolder + u.Name); err != nil {
		return err
	}
	return n.raw.WriteFile(vendorFolder+u.Name, []byte(text), host.Attr{Mode: 0o644})
}

// notLater drops the error that says that only the files of this machine can be read.
func notLater(err error) error {
	if errors.As(err, new(host.Later)) {
		return nil
	}
	return err
}

// Unit is host.View's.
func (n *Node) Unit(_ context.Context, name string) (host.Unit, error) {
	u, err := systemd.UnitOf(n.Files, name)
	if !n.Live() || notLater(err) != nil {
		return u, err
	}
	err = n.look(func() error {
		u.Active = "inactive"
		u.Uptime = n.now.Sub(n.booted)
		d := n.units[name]
		if d == nil || d.active == "" {
			return nil
		}

		u.Active = d.active
		u.PID = d.pid
		u.Started = d.started
		if d.active == d.Active {
			u.Sub = d.Sub
		}
		if !d.started.IsZero() {
			u.Since = d.started.Sub(n.booted)
		}
		return nil
	})
	return u, err
}

// SetUnit is host.Host's: links are written as on an image, a job is one touch.
func (n *Node) SetUnit(_ context.Context, name string, to host.UnitChange) error {
	err := systemd.SetUnitOf(n.Files, name, to)
	if !n.Live() || notLater(err) != nil || to.Job == "" {
		return err
	}
	return n.touch(func() error {
		if err := n.job(name, to.Job); err != nil {
			return &host.UnitError{Verb: to.Job, Unit: name, Cause: err}
		}
		return nil
	})
}

// Refuse replaces a unit's daemon by one that does not start with what fits the pattern.
func (n *Node) Refuse(name, pattern string) error {
	refuses, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.units[name].refuses = refuses
	return nil
}

// job runs one job; the node is locked.
func (n *Node) job(name, job string) error {
	u, err := systemd.UnitOf(n.raw, name)
	if err := notLater(err); err != nil {
		return err
	}
	stopsMasked := u.Load == "masked" && job == "stop" // a masked unit may still run
	if u.Load != "loaded" && !stopsMasked {
		return fmt.Errorf("unit %s: %w", u.Load, fs.ErrNotExist)
	}

	d := n.units[name]
	if d == nil {
		d = &daemon{unit: unit{Name: name}}
		n.units[name] = d
	}
	switch job {
	case "start":
		if d.active == "active" {
			return nil
		}
		return d.start(n, n.now)
	case "restart":
		d.stop(n)
		return d.start(n, n.now)
	case "reload":
		if d.active != "active" {
			return errors.New("it does not run")
		}
		_, d.loaded = d.read(n)
	case "stop":
		d.stop(n)
	case "reset-failed":
		if d.active == "failed" {
			d.active = "inactive"
		}
	default:
		return errors.New("no such job")
	}

	return nil
}

// start starts a daemon, which reads its files.
func (d *daemon) start(n *Node, at time.Time) error {
	content, digest := d.read(n)
	if d.refuses != nil && d.refuses.MatchString(content) {
		d.run = run{active: "failed"}
		return fmt.Errorf("the job ended as failed; journalctl -u %s says why", d.Name)
	}

	n.lastPID++
	d.run = run{
		active:  "active",
		pid:     n.lastPID,
		started: at,
		loaded:  digest,
	}
	for _, socket := range d.Makes {
		i := &inode{attrs: attrs{mode: fs.ModeSocket | 0o660}, ctime: at}
		i.sync()
		folder, err := n.folderFor(socket)
		if err != nil {
			return err
		}
		folder.put(path.Base(socket), i)
	}

	return nil
}

func (d *daemon) stop(n *Node) {
	d.run = run{active: "inactive"}
	for _, socket := range d.Makes {
		if folder, err := n.folderFor(socket); err == nil {
			folder.put(path.Base(socket), nil)
		}
	}
}

// read reads what the daemon reads at its start: its unit files and what it was declared to read.
func (d *daemon) read(n *Node) (content, digest string) {
	u, _ := systemd.UnitOf(n.raw, d.Name)
	files := slices.Clone(u.Files)
	for _, pattern := range d.Reads {
		names, _ := n.raw.ReadDir(path.Dir(pattern))
		for _, name := range names {
			if ok, _ := path.Match(path.Base(pattern), name); ok {
				files = append(files, path.Join(path.Dir(pattern), name))
			}
		}
	}

	var all strings.Builder
	sum := sha256.New()
	for _, file := range files {
		data, _ := n.raw.ReadFile(file)
		all.Write(data)
		fmt.Fprintf(sum, "%s %d\n%s", file, len(data), data)
	}

	return all.String(), string(sum.Sum(nil))
}

// startEnabled starts at boot what is enabled, and what something else started at the first boot.
func (n *Node) startEnabled() {
	for _, name := range slices.Sorted(maps.Keys(n.units)) {
		d := n.units[name]
		ranAtFirstBoot := d.Active == "active"
		d.run = run{active: "inactive"}
		u, _ := systemd.UnitOf(n.raw, name)
		starts := u.Enabled == "enabled" || u.Enabled == "static" && ranAtFirstBoot
		if u.Load == "loaded" && starts {
			n.now = n.now.Add(tick)
			_ = d.start(n, n.now) // a unit that fails at boot is failed, and the boot continues
		}
	}
}

// Units returns all units as text, one a line: name, enabled, active, and for those that run
// whether they have loaded what their files say.
func (n *Node) Units() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.units)) {
		d := n.units[name]
		undeclared := len(d.Reads)+len(d.Load)+len(d.Enabled) == 0
		if d.unit.Name == name && d.active == "inactive" && undeclared {
			continue // it only ran once
		}
		u, _ := systemd.UnitOf(n.raw, name)
		fmt.Fprintf(&b, "%s %s %s", name, cmp.Or(u.Enabled, u.Load), cmp.Or(d.active, "inactive"))
		if d.active == "active" {
			state := " stale"
			if _, now := d.read(n); now == d.loaded {
				state = " fresh"
			}
			b.WriteString(state)
		}

		b.WriteByte('\n')
	}

	return b.String()
}
