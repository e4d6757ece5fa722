// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// fresh is a daemon that runs with its files as they are now. Said as a state, and not as "restart because we wrote":
// so a crash between the write and the restart heals itself. Its states are "fresh", "stale", "inactive" (a daemon
// that was stopped will read its files when it starts), "failed" (one that wants to run and cannot) and "" (not installed).
type fresh struct {
	unit  string
	files []string // what it reads beside its unit files; folders count with what lies in them
	ready ReadyFunc
}

// A ReadyFunc waits until a restarted daemon serves again, or says why it does not. files are those it reads.
type ReadyFunc func(ctx context.Context, v host.View, unit string, files []string) error

// startMargin is how much later than its files' last change a daemon must have started: within it the two clocks
// cannot be told apart (a tick of the coarse clock that stamps files is up to 10 ms, at HZ=100).
const startMargin = 10 * time.Millisecond

// Fresh wants a daemon that runs to have started after the last change of the files it reads, and to be ready.
func Fresh(unit string, files []string, ready ReadyFunc, why string) converge.Want {
	f := fresh{unit, files, ready}
	return converge.Want{Thing: f, Why: why, Breaks: []string{"restart-runtime"}, To: func(found converge.State) (converge.State, error) {
		if found == "stale"+masked || found == "inactive"+masked {
			return "", &converge.Trouble{What: fmt.Sprintf("cannot restart %s: it is masked, so somebody wants it never to start", unit), Try: []string{"systemctl unmask " + unit}}
		}
		return f.Settled(found), nil
	}}
}

// NewFresh builds the thing again.
func NewFresh(unit string, files []string, ready ReadyFunc) converge.Thing {
	return fresh{unit, files, ready}
}

func (f fresh) Kind() string { return "fresh" }

func (f fresh) Name() string { return f.unit }

// Reads is converge.Reader's.
func (f fresh) Reads() []string { return f.files }

// masked is what a unit's state ends in that may go on running and cannot be started.
const masked = ", masked"

func (f fresh) Look(ctx context.Context, v host.View) (converge.State, error) {
	u, err := v.Unit(ctx, f.unit)
	if err != nil {
		return "", err
	}
	s, err := f.look(v, u)
	if u.Load == "masked" && err == nil {
		s += masked
	}
	return s, err
}

func (f fresh) look(v host.View, u host.Unit) (converge.State, error) {
	switch {
	case u.Load == "not-found":
		return "", nil
	case u.PID == 0 && (u.Active == "failed" || u.Active == "activating"): // activating without a process: between two tries
		return "failed", nil
	case u.PID == 0 || u.Started.IsZero():
		return "inactive", nil
	}
	for _, name := range append(slices.Clone(f.files), u.Files...) {
		late, err := changedSince(v, name, u)
		if err != nil {
			return "", err
		}
		if late {
			return "stale", nil
		}
	}
	return "fresh", nil
}

// changedSince says whether a file, the folder it lies in, or something in it if it is a folder, changed after the
// daemon had started. A folder's own time tells of files that came, went or were renamed over.
func changedSince(v host.View, name string, u host.Unit) (bool, error) {
	names := []string{name}
	info, err := v.Stat(name)
	switch {
	case missing(err):
		names = []string{nearestFolder(v, name)}
	case err != nil:
		return false, err
	case info.Mode.IsDir():
		in, err := v.ReadDir(name)
		if err != nil {
			return false, err
		}
		for _, n := range in {
			names = append(names, path.Join(name, n))
		}
	}
	for _, n := range names {
		info, err := v.Stat(n)
		if missing(err) {
			continue // a link that leads nowhere
		} else if err != nil {
			return false, err
		}
		if after(info.Ctime, v.Now(), u) {
			return true, nil
		}
	}
	return false, nil
}

func nearestFolder(v host.View, name string) string {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if info, err := v.Stat(dir); err == nil && info.Mode.IsDir() {
			return dir
		}
	}
	return "/"
}

// after compares a file's time with a start. Files are stamped by the wall clock, which NTP may step; starts are known by
// both clocks. A step can move the file's time either way, so it is early enough only if both clocks say so. A time that
// lies ahead of now comes from a clock since set back: nobody can tell how old it is, and no restart would make the
// daemon younger than it, so it counts as early.
func after(ctime, now time.Time, u host.Unit) bool {
	if ctime.After(now) {
		return false
	}
	age := now.Sub(ctime)
	running := u.Uptime - u.Since
	return age < running+startMargin && running > 0 || ctime.Add(startMargin).After(u.Started)
}

func (f fresh) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != "fresh" {
		return nil
	}
	u, err := h.Unit(ctx, f.unit)
	if err != nil {
		return err
	}
	// The daemon must start measurably later than its files changed, and be seen to.
	if wait := f.youngest(h, u).Add(2 * startMargin).Sub(h.Now()); wait > 0 && wait < time.Second {
		time.Sleep(wait)
	}
	err = h.SetUnit(ctx, f.unit, host.UnitChange{Job: "restart"})
	if err == nil && f.ready != nil {
		err = f.ready(ctx, h, f.unit, f.files)
	}
	if err != nil {
		return &converge.Trouble{What: err.Error(), Because: lastWords(ctx, h, f.unit), Try: []string{"journalctl -u " + f.unit + ", which has more"}, Err: err}
	}
	return nil
}

// lastWords are the last lines of a unit's log. Whoever cannot be asked has said nothing.
func lastWords(ctx context.Context, v host.View, unit string) []string {
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=3", "--unit="+unit)
	if err != nil || len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func (f fresh) youngest(v host.View, u host.Unit) (t time.Time) {
	for _, name := range append(slices.Clone(f.files), u.Files...) {
		for _, n := range []string{name, path.Dir(name)} {
			if info, err := v.Stat(n); err == nil && info.Ctime.After(t) {
				t = info.Ctime
			}
		}
	}
	return t
}

// Unsettled says that a change to a file the daemon reads makes it stale.
func (f fresh) Unsettled(found converge.State, by converge.Change) converge.State {
	state, is, _ := strings.Cut(string(found), ",")
	if state == "inactive" || by.Kind == "fresh" {
		return found
	}
	if is != "" {
		is = "," + is
	}
	for _, name := range f.files {
		if by.Name == name || strings.HasPrefix(by.Name, name+"/") {
			return converge.State("stale" + is)
		}
	}
	return found
}

// Settled says that a stale daemon, and one that our own restart may have left dead, is made fresh, and all else stays.
func (f fresh) Settled(found converge.State) converge.State {
	if found == "stale" || found == "failed" {
		return "fresh"
	}
	return found
}
