// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Machine holds what the checks have read of the machine. Each domain is read once, when the first
// check asks for it; checks run at the same time.
type Machine struct {
	ctx  context.Context // of the one examination that the Machine is for
	View host.View
	spec spec.Spec // what node.toml asks for
	own  Own

	basics     domain[facts.Facts] // without the driver's answer
	driver     domain[driverReply]
	facts      domain[facts.Facts]
	log        domain[[]string]
	packages   domain[inventory]
	joined     domain[string] // what joins the GPUs over NVLink
	registered domain[registration]
	times      domain[times]
	watching   domain[inotify]
	units      sync.Map // of domain[host.Unit], by name

	mu      sync.Mutex
	unread  []Unread
	unseen  map[string]error // what a check asked, and why it could not be looked at
	silent  map[string]error // the sockets of daemons that did not answer
	reading []string         // the names of the domains that are being read
}

// domain is one part of a machine.
type domain[T any] struct {
	mu    sync.Mutex    // of known
	known chan struct{} // closed when value and ok are known; nil before the first check asks

	value T
	ok    bool
}

// read reads a domain when the first check asks for it. ok is false if it cannot be read; the
// Machine then notes the name and why.
func (d *domain[T]) read(m *Machine, name string, read func() (T, error)) (value T, ok bool) {
	d.mu.Lock()
	first := d.known == nil
	if first {
		d.known = make(chan struct{})
	}
	d.mu.Unlock()

	if !first {
		<-d.known
		return d.value, d.ok
	}
	defer close(d.known)

	m.begins(name)
	defer m.ends(name)
	var err error
	d.value, err = read()
	d.ok = err == nil
	if err != nil {
		m.cannotRead(name, err)
	}
	return d.value, d.ok
}

// begins notes that a domain is being read, and ends that it no longer is.
func (m *Machine) begins(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reading = append(m.reading, name)
}

func (m *Machine) ends(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.reading, name); i >= 0 {
		m.reading = slices.Delete(m.reading, i, i+1)
	}
}

// waitsFor names the domains that are being read.
func (m *Machine) waitsFor() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(m.reading))), ", ")
}

// cannotRead notes what could not be read, and why.
func (m *Machine) cannotRead(what string, err error) {
	unread := Unread{What: what, Why: m.whyUnread(what, err)}

	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.unread, unread) {
		m.unread = append(m.unread, unread)
	}
}

// whyUnread says why something could not be read: to users other than root, that root may.
func (m *Machine) whyUnread(what string, err error) string {
	var file *host.FileError
	isRoot := m.own.Shut != nil
	switch {
	case isRoot || !errors.Is(err, fs.ErrPermission):
		return err.Error()
	case errors.As(err, &file) && file.Path != what && !isOfProcess().MatchString(file.Path):
		return "only root may read " + file.Path
	}

	return "only root may read it"
}

// notRead lists what could not be read: the parts that checks have named, and each other look that
// failed.
func (m *Machine) notRead() []Unread {
	m.mu.Lock()
	defer m.mu.Unlock()

	for what, err := range m.unseen {
		isNamed := func(u Unread) bool { return u.names(what) }
		if !slices.ContainsFunc(m.unread, isNamed) {
			m.unread = append(m.unread, Unread{What: what, Why: m.whyUnread(what, err)})
		}
	}

	unread := slices.Clone(m.unread)
	sorting.By(unread, func(a, b Unread) int {
		return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why))
	})
	return unread
}

// Basics describes the machine with its modules, but without what its driver says: a check that
// does not need that does not wait for the driver. What could not be read is empty.
func (m *Machine) Basics() facts.Facts {
	f, _ := m.basics.read(m, "facts", func() (facts.Facts, error) {
		f, err := facts.Gather(m.ctx, withoutDriver{m.View}, facts.Everything)
		if err != nil {
			m.cannotRead("some facts", err)
		}
		return f, nil
	})
	return f
}

// Facts are Basics with what the driver says.
func (m *Machine) Facts() facts.Facts {
	f, _ := m.facts.read(m, "facts", func() (facts.Facts, error) {
		reply := m.askDriver()
		f := m.Basics()
		if err := f.SetDriver(reply.driver, reply.err); err != nil {
			m.cannotRead("some facts", err)
		}
		return f, nil
	})
	return f
}

// driverReply is the driver's answer, or why there is none.
type driverReply struct {
	driver host.Driver
	err    error
}

func (m *Machine) askDriver() driverReply {
	reply, _ := m.driver.read(m, "the driver", func() (driverReply, error) {
		driver, err := m.View.Driver(m.ctx)
		return driverReply{driver, err}, nil
	})
	return reply
}

// withoutDriver is a machine whose driver is asked at another place.
type withoutDriver struct{ host.View }

func (withoutDriver) Driver(context.Context) (host.Driver, error) {
	return host.Driver{}, host.Later{Until: "once the driver answers"}
}

// GPUs are the functions on the PCI bus that are GPUs.
func (m *Machine) GPUs() []facts.PCI {
	isOther := func(device facts.PCI) bool { return !device.Display() }
	return slices.DeleteFunc(slices.Clone(m.Basics().GPUs), isOther)
}

// text reads a small file; "" if it does not exist. ok is false if it cannot be read.
func (m *Machine) text(name string) (text string, ok bool) {
	data, err := m.View.ReadFile(name)
	switch {
	case err == nil:
		return strings.TrimSpace(string(data)), true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", true
	}

	m.cannotRead(name, err)
	return "", false
}

// has reports whether a name exists; links are followed.
func (m *Machine) has(name string) bool {
	_, err := m.View.Stat(name)
	return err == nil
}

// settled is how long a daemon that systemd has restarted must run before it counts as running:
// kubelet and containerd are active until they refuse their configuration; kubelet took less than
// 2.2 seconds at a load of 20. NRestarts: org.freedesktop.systemd1(5).
const settled = 5 * time.Second

// Unit describes a unit; ok is false where no systemd answers, and for an engine without a unit. A
// daemon that systemd has restarted is watched until it ends again or has settled.
func (m *Machine) Unit(name string) (host.Unit, bool) {
	if name == "" {
		return host.Unit{}, false
	}
	unit, _ := m.units.LoadOrStore(name, new(domain[host.Unit]))
	return unit.(*domain[host.Unit]).read(m, allUnits, func() (host.Unit, error) {
		return m.settledUnit(name)
	})
}

func (m *Machine) settledUnit(name string) (host.Unit, error) {
	unit, err := m.View.Unit(m.ctx, name)
	if err != nil || unit.Ended == 0 {
		return unit, err
	}

	restarts := unit.Ended
	for unit.Uptime-unit.Since < settled && host.Pause(m.ctx, settled/50) == nil {
		unit, err = m.View.Unit(m.ctx, name)
		if unit.Ended > restarts { // it has ended since the first look, and runs again
			unit.Active = "activating"
			unit.Sub = "auto-restart"
			unit.PID = 0
			return unit, nil
		}

		if err != nil {
			break
		}
	}

	return unit, err
}

// hasNoProcess reports whether a unit is loaded, or masked, and has no process.
func (m *Machine) hasNoProcess(unit string) bool {
	if unit == "" {
		return false
	}
	u, ok := m.Unit(unit)
	isActive := u.Active == "active" || u.Active == "reloading"
	isThere := u.Load == "loaded" || u.Load == "masked"
	return ok && isThere && u.PID == 0 && !isActive
}

// waitsForRestart reports whether systemd waits to restart a unit that has ended: a start by hand
// would end too.
// Sources: org.freedesktop.systemd1(5); service_state_table in systemd's src/basic/unit-def.c
// (auto-restart, auto-restart-queued).
func waitsForRestart(u host.Unit) bool {
	return u.Active == "activating" && strings.HasPrefix(u.Sub, "auto-restart")
}

// crashLoop describes a unit without a process that systemd restarts again and again.
func (m *Machine) crashLoop(unit string) []Finding {
	u, _ := m.Unit(unit)
	if !waitsForRestart(u) {
		return nil
	}

	what := fmt.Sprintf("%s has ended, and systemd waits to start it again", unit)
	killed := lastLineWith(m.Log(), "oom-kill:")
	if strings.Contains(killed, "/"+unit) { // dump_oom_summary in mm/oom_kill.c names the cgroup
		what += "; the kernel killed it, for its memory is used up"
	}
	if words := things.LastLines(m.ctx, m.View, unit); len(words) > 0 {
		what += "; its last words: " + strings.Join(words, " / ")
	}
	return []Finding{{
		Object:  unit,
		What:    what,
		Command: "sudo journalctl -u " + strings.TrimSuffix(unit, ".service") + " -n 50",
	}}
}

// stoppedUnit describes a unit without a process that systemd does not restart.
func (m *Machine) stoppedUnit(unit string) []Finding {
	u, _ := m.Unit(unit)
	if waitsForRestart(u) {
		return nil
	}
	if u.Load == "masked" {
		return []Finding{maskedUnit(unit)}
	}
	return []Finding{{
		Object:  unit,
		What:    fmt.Sprintf("%s is %s", unit, u.Active),
		Command: "systemctl status " + unit,
	}}
}

// maskedUnit is the finding of a unit that systemd must not start: systemctl(1), mask.
func maskedUnit(unit string) Finding {
	return Finding{
		Object:  unit,
		What:    unit + " is masked, so that systemd does not start it",
		Fix:     "unmask the unit, if it was not masked on purpose, and start it",
		Command: fmt.Sprintf("sudo systemctl unmask %[1]s && sudo systemctl start %[1]s", unit),
		Other:   "an operator or another program masked the unit, and may have had a reason",
	}
}

// outdated reports whether a daemon started before one of its files was changed. It skips files
// that do not exist: only the folder's time could show a removal, and each other file of that
// folder changes it too.
func (m *Machine) outdated(unit string, files []string) bool {
	isMissing := func(name string) bool { return !m.has(name) }
	existing := slices.DeleteFunc(slices.Clone(files), isMissing)
	state, err := things.NewRestart(unit, existing, nil).Look(m.ctx, m.View)
	if err != nil || things.DaemonState(state) != things.Outdated {
		return false
	}

	rewritten, err := things.Rewritten(m.ctx, m.View, unit, existing)
	return err == nil && rewritten
}
