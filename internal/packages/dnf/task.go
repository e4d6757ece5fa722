// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A task is what dnf does in one transaction.
type task struct{ install, remove []string }

// args returns the arguments of one command that does the whole task; nil if no single command can.
func (t task) args() []string {
	switch {
	case len(t.remove) == 0:
		return append([]string{"install", "--allowerasing"}, t.install...)
	case len(t.install) == 0:
		return append([]string{"remove"}, t.remove...)
	}
	return nil
}

// script returns the task for dnf's shell. The shell continues after a line that fails, so gpuadm
// runs only a task that a simulation has shown; it accepts files only in the first line.
func (t task) script() []byte {
	return []byte(shellLine("install", t.install) + shellLine("remove", t.remove) + "run\nexit\n")
}

// shellLine is a command of dnf's shell, which splits a line as sh does: a requirement such as
// "libnvidia-cfg = 3:580.65.06-1.el9" is one word of it.
// Source: onecmd in dnf/cli/commands/shell.py of dnf's tree.
func shellLine(verb string, words []string) string {
	line := verb
	for _, word := range words {
		line += " " + host.ShellWord(word)
	}
	return line + "\n"
}

// task returns dnf's task for changes. It passes versions that only Store has as files.
func (s solver) task(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (t task) {
	installs := map[string]bool{}
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		if !to.Installed() {
			t.remove = append(t.remove, s.d.spec(c.Name))
			continue
		}

		spec := named(c.Name, to.Version)
		if _, offered := packages.Find(offers[c.Name], to.Version); !offered {
			spec = cmp.Or(s.Stored(v, c.Name, to.Version), spec)
		}
		t.install = append(t.install, spec)
		installs[c.Name] = true
	}

	t.install = append(t.install, s.d.lostBy(incomplete(changes), installs)...)
	return t
}

// incomplete returns the packages among the changes that stay in their version and lack a
// requirement. dnf install does not restore it: for dnf such a package is installed. Another
// version has requirements of its own, which dnf installs with it.
func incomplete(changes []converge.Change) (names []string) {
	for _, c := range changes {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		stays := after.Installed() && after.Version == before.Version
		if stays && before.Broken == packages.Incomplete {
			names = append(names, c.Name)
		}
	}
	return names
}

// do has dnf do a task.
func (a dnf) do(ctx context.Context, h host.Host, t task) ([]byte, error) {
	if args := t.args(); args != nil {
		return a.run(ctx, h, args...)
	}

	if err := packages.MakeStore(h); err != nil {
		return nil, err
	}
	const file = packages.Store + "/transaction"
	if err := h.WriteFile(file, t.script(), host.Attr{Mode: 0o600}); err != nil {
		return nil, err
	}
	out, err := a.run(ctx, h, "--allowerasing", "shell", file)
	removeErr := h.Remove(file)
	if err := cmp.Or(err, removeErr); err != nil {
		return out, err
	}
	if sayUnmatched().Match(out) || sayDnfError().Match(out) {
		failed := &host.CommandError{
			Argv:   []string{"dnf", "shell"},
			Stderr: string(out),
			Cause:  errors.New("not all of it was done"),
		}
		return out, explain(h, string(out), failed)
	}

	return out, nil
}
