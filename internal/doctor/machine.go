// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Machine is what was read of the machine. Each domain is read once, when the first check asks for it; checks run side by side.
type Machine struct {
	ctx  context.Context // of the one examination that the Machine is for
	View host.View
	spec spec.Spec // what node.toml asks for

	facts domain[facts.Facts]
	log   domain[[]string]

	packages domain[inventory]
	joined   domain[string] // what joins the GPUs over NVLink

	registered domain[registration]

	mu     sync.Mutex
	unread []Unread
}

func newMachine(ctx context.Context, v host.View) *Machine { return &Machine{ctx: ctx, View: v} }

// domain is one part of a machine.
type domain[T any] struct {
	once  sync.Once
	value T
	ok    bool
}

// read reads a domain for the first that asks. ok is false where it cannot be read, which is noted under its name.
func (d *domain[T]) read(m *Machine, name string, read func() (T, error)) (value T, ok bool) {
	d.once.Do(func() {
		var err error
		d.value, err = read()
		d.ok = err == nil
		if err != nil {
			m.cannotRead(name, err)
		}
	})
	return d.value, d.ok
}

// cannotRead notes what could not be read, and why.
func (m *Machine) cannotRead(what string, err error) {
	why := err.Error()
	if errors.Is(err, fs.ErrPermission) {
		why = "only root may read it"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := (Unread{what, why}); !slices.Contains(m.unread, u) {
		m.unread = append(m.unread, u)
	}
}

func (m *Machine) notRead() []Unread {
	slices.SortFunc(m.unread, func(a, b Unread) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
	return m.unread
}

// Facts are what machine this is, with its modules and what its driver says. What of them could not be read is empty.
func (m *Machine) Facts() facts.Facts {
	f, _ := m.facts.read(m, "facts", func() (facts.Facts, error) {
		f, err := facts.Gather(m.ctx, m.View, facts.Everything)
		if err != nil {
			m.cannotRead("some facts", err)
		}
		return f, nil
	})
	return f
}

// GPUs are the functions on the PCI bus that are GPUs.
func (m *Machine) GPUs() []facts.PCI {
	return slices.DeleteFunc(slices.Clone(m.Facts().GPUs), func(p facts.PCI) bool { return !p.Display() })
}

// Log has the kernel's lines of this boot, the oldest first, each without its time.
func (m *Machine) Log() []string {
	lines, _ := m.log.read(m, "kernel log", func() ([]string, error) {
		out, err := m.View.Ask(m.ctx, "journalctl", "--no-pager", "--quiet", "--dmesg", "--boot", "--output=cat")
		if err != nil || len(out) == 0 { // journalctl(1): who may not read the system's journal gets an empty answer
			if out, err = m.View.Ask(m.ctx, "dmesg"); err != nil {
				return nil, errors.New("neither journalctl nor dmesg shows it: only root, or the group adm, may read it")
			}
		}
		return strings.Split(string(out), "\n"), nil
	})
	return lines
}

// text reads a small file; "" where it is not there. ok is false where it cannot be read.
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

// has says whether something is there under a name, links followed.
func (m *Machine) has(name string) bool {
	_, err := m.View.Stat(name)
	return err == nil
}

// Unit describes a unit; ok is false where no systemd answers.
func (m *Machine) Unit(name string) (host.Unit, bool) {
	u, err := m.View.Unit(m.ctx, name)
	if err != nil {
		m.cannotRead("units of systemd", err)
	}
	return u, err == nil
}

// note says what is no fault, and an operator should know.
func (m *Machine) note() string {
	f := m.Facts()
	switch {
	case len(m.GPUs()) == 0 || f.Modules == nil || f.Driver != nil || f.Modules.Version != "" || len(f.Modules.Libraries) > 0:
	case slices.ContainsFunc(f.Modules.Kernels, func(k facts.KernelModules) bool { return k.Nvidia != nil }):
	case !slices.ContainsFunc(m.GPUs(), func(p facts.PCI) bool { return p.Driver != "" }):
		return "no NVIDIA driver is installed: " + trouble.Command("plan") + " shows how to get one"
	}
	return ""
}
