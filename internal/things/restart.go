// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
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
	unit     string
	files    []string // what it reads in addition to its unit files; a folder means all files in it
	ready    ReadyFunc
	precheck PrecheckFunc
	verdict  PrecheckFunc

	// socket is that of a daemon that another program supervises and restarts: the socket is as old
	// as the daemon's process. With a unit that unit is restarted, and the daemon with it.
	socket string
}

// The states of a daemon that runs.
const (
	UpToDate converge.State = "up to date"
	Outdated converge.State = "its configuration changed since it started"
)

// masked is the suffix of a masked unit's state: its daemon may run, but systemd refuses to start
// it again.
const masked = ", masked"

// A ReadyFunc waits until a restarted daemon serves again, or says why it does not. files are those
// it reads.
type ReadyFunc func(ctx context.Context, v host.View, unit string, files []string) error

// A PrecheckFunc says why a daemon would not serve after a restart with its present files. It asks
// the daemon's own program if that can tell.
type PrecheckFunc func(ctx context.Context, v host.View) error

// Restart wants a running daemon to have started after the last change of the files it reads, and
// to be ready.
func Restart(unit string, files []string, ready ReadyFunc, why string) converge.Want {
	r := restart{unit: unit, files: files, ready: ready}
	to := func(found converge.State) (converge.State, error) {
		if found == Outdated+masked || found == "inactive"+masked {
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot restart %s: the unit is masked", unit),
				Try:  []string{"systemctl unmask " + unit},
			}
		}
		return r.Current(found), nil
	}

	return converge.Want{
		Thing:  r,
		Why:    why,
		Breaks: []string{"restart-runtime"},
		To:     to,
	}
}

// Prechecked adds a check: the engine asks it before a restart that no pending change of gpuadm's
// causes.
func Prechecked(w converge.Want, by PrecheckFunc) converge.Want {
	if r, ok := w.Thing.(restart); ok {
		r.precheck = by
		w.Thing = r
	}
	return w
}

// Judged adds a verdict: gpuadm asks it right before each restart, also in an undo and a roll-back,
// and leaves a daemon alone that would not start again.
func Judged(w converge.Want, by PrecheckFunc) converge.Want {
	if r, ok := w.Thing.(restart); ok {
		r.verdict = by
		w.Thing = r
	}
	return w
}

// NewRestart builds the thing again. A kind that can ask its daemon more embeds it.
func NewRestart(unit string, files []string, ready ReadyFunc) converge.Follower {
	return restart{unit: unit, files: files, ready: ready}
}

// NewJudged is NewRestart with a verdict: see Judged.
func NewJudged(unit string, files []string, ready ReadyFunc, verdict PrecheckFunc) converge.Follower {
	return restart{
		unit:    unit,
		files:   files,
		ready:   ready,
		verdict: verdict,
	}
}

// NewSupervised is the restart of a daemon that has no unit: its supervisor starts it again when a
// file changes.
func NewSupervised(socket string, files []string, ready ReadyFunc) converge.Follower {
	return restart{files: files, ready: ready, socket: socket}
}

// NewChild is the restart of a daemon that is not its unit's main process: the unit's program
// prepares files, and starts the daemon then. For the verdict see Judged.
func NewChild(unit, socket string, files []string, ready ReadyFunc, verdict PrecheckFunc) converge.Follower {
	return restart{
		unit:    unit,
		files:   files,
		ready:   ready,
		verdict: verdict,
		socket:  socket,
	}
}

func (r restart) Ref() converge.Ref {
	if r.socket != "" {
		return converge.Ref{
			Kind:  "daemon",
			Name:  r.socket,
			Form:  r.unit,
			Reads: r.files,
		}
	}
	return converge.Ref{Kind: "restart", Name: r.unit, Reads: r.files}
}

// Validate runs the precheck, if there is one.
func (r restart) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	if r.precheck == nil {
		return nil
	}
	return r.precheck(ctx, v)
}

// DaemonState is a daemon's state without the mask of its unit.
func DaemonState(state converge.State) converge.State {
	word, _, _ := strings.Cut(string(state), ",")
	return converge.State(word)
}

func (r restart) Look(ctx context.Context, v host.View) (converge.State, error) {
	if r.socket != "" {
		info, err := v.Stat(r.socket)
		if host.NotExist(err) {
			return "inactive", nil
		}
		if err != nil {
			return "", err
		}
		late, err := rewrittenSince(v, host.Unit{Started: info.Ctime}, r.files)
		if late {
			return Outdated, err
		}
		return UpToDate, err
	}

	u, err := v.Unit(ctx, r.unit)
	if err != nil {
		return "", err
	}
	s, err := r.look(v, u)
	if err == nil && u.Load == "masked" {
		s += masked
	}

	return s, err
}

func (r restart) look(v host.View, u host.Unit) (converge.State, error) {
	if u.Load == "not-found" {
		return "", nil
	}
	if u.PID == 0 && (u.Active == "failed" || u.Active == "activating") { // activating: between two attempts
		return "failed", nil
	}
	if u.PID == 0 || u.Started.IsZero() {
		return "inactive", nil
	}

	changed := func(info host.Info, _ string) bool { return after(info.Ctime, v.Now(), u) }
	for _, name := range slices.Concat(r.files, u.Files) {
		late, err := anyInfo(v, name, changed)
		if err != nil {
			return "", err
		}
		if late {
			return Outdated, nil
		}
	}

	return UpToDate, nil
}

func (r restart) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != UpToDate {
		return nil
	}
	if r.socket != "" {
		if r.unit != "" {
			if _, err := r.judged(ctx, h); err != nil {
				return err
			}
			err := h.SetUnit(ctx, r.unit, host.UnitChange{Job: "restart"})
			if err != nil {
				return err
			}
		}
		return r.await(ctx, h)
	}

	u, err := r.judged(ctx, h)
	if err != nil {
		return err
	}

	// The times must show that the daemon started after its files changed.
	last := lastChange(h, slices.Concat(r.files, u.Files))
	wait := last.Add(2 * startMargin).Sub(h.Now())
	if wait > 0 && wait < time.Second {
		time.Sleep(wait)
	}

	err = h.SetUnit(ctx, r.unit, host.UnitChange{Job: "restart"})
	if err == nil && r.ready != nil {
		err = r.ready(ctx, h, r.unit, r.files)
	}
	if err != nil {
		return &trouble.Error{
			What:    err.Error(),
			Because: LastLines(ctx, h, r.unit),
			Try:     []string{"journalctl -u " + r.unit + ", which has more"},
			Err:     err,
		}
	}

	return nil
}

// judged is the unit, if its daemon would start again.
func (r restart) judged(ctx context.Context, v host.View) (host.Unit, error) {
	u, err := v.Unit(ctx, r.unit)
	if err == nil {
		err = Verdict(ctx, v, u, r.unit, r.verdict)
	}
	return u, err
}

// Verdict says why a daemon must not be started now, as judge has it; nil without a judge.
func Verdict(ctx context.Context, v host.View, u host.Unit, unit string, judge PrecheckFunc) error {
	if judge == nil {
		return nil
	}
	err := judge(ctx, v)
	if err == nil {
		return nil
	}

	t := &trouble.Error{
		What: fmt.Sprintf("cannot start %s: %v", unit, err),
		Err:  converge.DoesNotStart{Runs: u.PID != 0, Down: "failed", Err: err},
	}
	var explained *trouble.Error
	if errors.As(err, &explained) {
		t.What = explained.What
		t.Because = slices.Clone(explained.Because)
		t.Try = explained.Try
	}

	if u.PID != 0 {
		t.Because = append(t.Because, unit+" runs on with what it has loaded")
	}
	return t
}

// startPatience is how long a supervisor has to start its daemon again. k0s waits three seconds for
// more changes, and five between two starts: watchDropinConfigs and pkg/supervisor of
// https://github.com/k0sproject/k0s.
const startPatience = time.Minute

// errStillAway is the cause that ends the wait for a daemon.
var errStillAway = errors.New("its supervisor has not started it again")

// await waits for the supervisor to start the daemon, and for the daemon to serve again.
func (r restart) await(ctx context.Context, h host.Host) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, errStillAway)
	defer cancel()

	for {
		state, err := r.Look(ctx, h)
		if err != nil {
			return err
		}
		if state == UpToDate {
			return r.ready(ctx, h, r.unit, r.files)
		}
		if host.Pause(ctx, 100*time.Millisecond) != nil {
			return r.stillAway(context.Cause(ctx))
		}
	}
}

// stillAway says that the daemon did not come back in time, or why the run did not wait so long.
func (r restart) stillAway(cause error) error {
	if !errors.Is(cause, errStillAway) {
		return cause
	}

	try := "systemctl restart 'k0s*'" // the only supervisor without a unit of the daemon's
	if r.unit != "" {
		try = "journalctl -u " + r.unit
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot wait for the daemon at %s: its supervisor has not started it again within %v", r.socket, startPatience),
		Try:  []string{try},
	}
}

// linesPatience is how long journalctl has for lines that only explain an error.
const linesPatience = 2 * time.Second

// LastLines are the last three lines of a unit's log; none if journalctl does not answer.
func LastLines(ctx context.Context, v host.View, unit string) []string {
	ctx, end := context.WithTimeout(ctx, linesPatience)
	defer end()
	out, err := v.Ask(ctx, "journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=3", "--unit="+unit)
	if err != nil || len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
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
