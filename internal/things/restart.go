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
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// restart is a daemon that must have started after the last change of its files. gpuadm compares
// times and remembers no write of its own: so it restarts the daemon even if gpuadm itself crashed
// between a write and the restart. Its states are UpToDate, Outdated, "inactive" (a stopped daemon
// reads its files when it starts), "failed" (it should run and cannot) and "" (not installed).
type restart struct {
	unit   string
	files  []string // what it reads beside its unit files; a folder means all files in it
	ready  ReadyFunc
	judge  JudgeFunc
	socket string // of a daemon that another program supervises and restarts: the socket is as old as the daemon's process
}

// The states of a daemon that runs.
const (
	UpToDate converge.State = "up to date"
	Outdated converge.State = "its configuration changed since it started"
)

// A ReadyFunc waits until a restarted daemon serves again, or says why it does not. files are those
// it reads.
type ReadyFunc func(ctx context.Context, v host.View, unit string, files []string) error

// A JudgeFunc says why a daemon would not serve after a restart with its present files. It asks the
// daemon's own program if that can tell.
type JudgeFunc func(ctx context.Context, v host.View) error

// startMargin is how much later than its files' last change a daemon must have started: the coarse
// clock that stamps files is up to one tick behind, which is 10 ms at HZ=100.
const startMargin = 10 * time.Millisecond

// Restart wants a running daemon to have started after the last change of the files it reads, and
// to be ready.
func Restart(unit string, files []string, ready ReadyFunc, why string) converge.Want {
	r := restart{unit: unit, files: files, ready: ready}
	return converge.Want{Thing: r, Why: why, Breaks: []string{"restart-runtime"}, To: func(found converge.State) (converge.State, error) {
		if found == Outdated+masked || found == "inactive"+masked {
			return "", &trouble.Error{What: fmt.Sprintf("cannot restart %s: the unit is masked", unit), Try: []string{"systemctl unmask " + unit}}
		}
		return r.Current(found), nil
	}}
}

// Judged adds a judge: the engine asks it before a restart that no pending change of gpuadm's
// causes.
func Judged(w converge.Want, by JudgeFunc) converge.Want {
	if r, ok := w.Thing.(restart); ok {
		r.judge = by
		w.Thing = r
	}
	return w
}

// Validate has the daemon judged, if it has a judge.
func (r restart) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	if r.judge == nil {
		return nil
	}
	return r.judge(ctx, v)
}

// NewRestart builds the thing again. A kind that can ask its daemon more embeds it.
func NewRestart(unit string, files []string, ready ReadyFunc) converge.Follower {
	return restart{unit: unit, files: files, ready: ready}
}

// NewSupervised is the restart of a daemon that has no unit: its supervisor starts it again when a
// file changes.
func NewSupervised(socket string, files []string, ready ReadyFunc) converge.Follower {
	return restart{files: files, ready: ready, socket: socket}
}

func (r restart) Ref() converge.Ref {
	if r.socket != "" {
		return converge.Ref{Kind: "daemon", Name: r.socket, Reads: r.files}
	}
	return converge.Ref{Kind: "restart", Name: r.unit, Reads: r.files}
}

// masked is the suffix of a masked unit's state: its daemon may run, but systemd refuses to start
// it again.
const masked = ", masked"

// DaemonState is a daemon's state without the mask of its unit.
func DaemonState(state converge.State) converge.State {
	word, _, _ := strings.Cut(string(state), ",")
	return converge.State(word)
}

func (r restart) Look(ctx context.Context, v host.View) (converge.State, error) {
	if r.socket != "" {
		at, err := v.Stat(r.socket)
		if host.NotExist(err) {
			return "inactive", nil
		} else if err != nil {
			return "", err
		}
		return r.look(v, host.Unit{PID: 1, Started: at.Ctime})
	}
	u, err := v.Unit(ctx, r.unit)
	if err != nil {
		return "", err
	}
	s, err := r.look(v, u)
	if u.Load == "masked" && err == nil {
		s += masked
	}
	return s, err
}

func (r restart) look(v host.View, u host.Unit) (converge.State, error) {
	switch {
	case u.Load == "not-found":
		return "", nil
	case u.PID == 0 && (u.Active == "failed" || u.Active == "activating"): // activating without a process: between two tries
		return "failed", nil
	case u.PID == 0 || u.Started.IsZero():
		return "inactive", nil
	}
	for _, name := range append(slices.Clone(r.files), u.Files...) {
		late, err := changedSince(v, name, func(at host.Info, _ string) bool { return after(at.Ctime, v.Now(), u) })
		if err != nil {
			return "", err
		}
		if late {
			return Outdated, nil
		}
	}
	return UpToDate, nil
}

// Rewritten says whether a file that a daemon reads may have new content since the daemon started.
// Unlike Outdated it ignores chmod and restorecon, which change only a file's ctime. A file that
// was moved into place keeps an old mtime; then its folder's mtime is new. Sources: inode(7),
// st_ctime and st_mtime; https://pubs.opengroup.org/onlinepubs/9799919799/functions/rename.html.
func Rewritten(ctx context.Context, v host.View, unit string, files []string) (bool, error) {
	u, err := v.Unit(ctx, unit)
	if err != nil {
		return false, err
	}
	for _, name := range append(slices.Clone(files), u.Files...) {
		late, err := changedSince(v, name, func(at host.Info, name string) bool {
			folder, err := v.Stat(path.Dir(name))
			return after(at.Mtime, v.Now(), u) || after(at.Ctime, v.Now(), u) && err == nil && after(folder.Mtime, v.Now(), u)
		})
		if late || err != nil {
			return late, err
		}
	}
	return false, nil
}

// changedSince says whether late is true for a file, for each entry if it is a folder, or for the
// nearest folder if it is missing. A folder's own time shows that files in it were made, removed or
// replaced.
func changedSince(v host.View, name string, late func(info host.Info, name string) bool) (bool, error) {
	names := []string{name}
	info, err := v.Stat(name)
	switch {
	case host.NotExist(err):
		names = []string{NearestFolder(v, name)}
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
		if host.NotExist(err) {
			continue // a link whose target is missing
		} else if err != nil {
			return false, err
		}
		if late(info, n) {
			return true, nil
		}
	}
	return false, nil
}

// NearestFolder is the closest folder above a name that exists.
func NearestFolder(v host.View, name string) string {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if info, err := v.Stat(dir); err == nil && info.Mode.IsDir() {
			return dir
		}
	}
	return "/"
}

// after says whether a file changed after the unit started. The wall clock stamps files, and NTP
// may step that clock in either direction; for starts the monotonic clock is known too. So the file
// is early only if both clocks say so. A time in the future comes from a clock that was set back
// later. Such a file counts as early: else the daemon would be older than the file after each
// restart.
func after(ctime, now time.Time, u host.Unit) bool {
	if ctime.After(now) {
		return false
	}
	age := now.Sub(ctime)
	running := u.Uptime - u.Since
	return age < running+startMargin && running > 0 || ctime.Add(startMargin).After(u.Started)
}

func (r restart) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != UpToDate {
		return nil
	}
	if r.socket != "" {
		return r.await(ctx, h)
	}
	u, err := h.Unit(ctx, r.unit)
	if err != nil {
		return err
	}
	// The times must show that the daemon started after its files changed.
	if wait := r.youngest(h, u).Add(2 * startMargin).Sub(h.Now()); wait > 0 && wait < time.Second {
		time.Sleep(wait)
	}
	err = h.SetUnit(ctx, r.unit, host.UnitChange{Job: "restart"})
	if err == nil && r.ready != nil {
		err = r.ready(ctx, h, r.unit, r.files)
	}
	if err != nil {
		return &trouble.Error{What: err.Error(), Because: LastWords(ctx, h, r.unit), Try: []string{"journalctl -u " + r.unit + ", which has more"}, Err: err}
	}
	return nil
}

// startPatience is how long a supervisor has to start its daemon again. k0s waits three seconds for
// more changes, and five between two starts: watchDropinConfigs and pkg/supervisor of
// https://github.com/k0sproject/k0s.
const startPatience = time.Minute

// await waits for the supervisor to start the daemon, and for the daemon to serve again.
func (r restart) await(ctx context.Context, h host.Host) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		switch state, err := r.Look(ctx, h); {
		case err != nil:
			return err
		case state == UpToDate:
			return r.ready(ctx, h, "", r.files)
		}
		if host.Pause(ctx, 100*time.Millisecond) != nil {
			return &trouble.Error{What: fmt.Sprintf("cannot wait for the daemon at %s: its supervisor has not started it again within %v", r.socket, startPatience), Try: []string{"systemctl restart 'k0s*'"}}
		}
	}
}

// LastWords are the last three lines of a unit's log; none if journalctl does not answer.
func LastWords(ctx context.Context, v host.View, unit string) []string {
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=3", "--unit="+unit)
	if err != nil || len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func (r restart) youngest(v host.View, u host.Unit) (t time.Time) {
	for _, name := range append(slices.Clone(r.files), u.Files...) {
		for _, n := range []string{name, path.Dir(name)} {
			if info, err := v.Stat(n); err == nil && info.Ctime.After(t) {
				t = info.Ctime
			}
		}
	}
	return t
}

// Affected says that a change to a file which the daemon reads makes the daemon outdated. A folder
// that gpuadm makes or removes is empty, and changes nothing for the daemon.
func (r restart) Affected(found converge.State, by converge.Change) converge.State {
	state, suffix, _ := strings.Cut(string(found), ",")
	if state == "inactive" || by.Kind == r.Ref().Kind || by.Kind == "folder" {
		return found
	}
	if suffix != "" {
		suffix = "," + suffix
	}
	for _, name := range r.files {
		if by.Name == name || strings.HasPrefix(by.Name, name+"/") {
			return Outdated + converge.State(suffix)
		}
	}
	return found
}

// Current says that gpuadm restarts an outdated daemon, and a failed one, since its own restart may
// be why. All other states stay.
func (r restart) Current(found converge.State) converge.State {
	if found == Outdated || found == "failed" {
		return UpToDate
	}
	return found
}
