// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// supervised is a machine with a daemon that a unit's program starts, a minute after the unit.
type supervised struct {
	host.Host
	infos    map[string]host.Info
	restarts []string
}

const (
	childSocket = "/run/x/daemon.sock"
	childFile   = "/etc/x.d/gpuadm.toml"
)

func (h *supervised) Now() time.Time { return time.Unix(9000, 0) }

func (h *supervised) Stat(name string) (host.Info, error) {
	info, ok := h.infos[name]
	if !ok {
		return info, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return info, nil
}

func (*supervised) Unit(context.Context, string) (host.Unit, error) {
	return host.Unit{
		Load:    "loaded",
		Active:  "active",
		PID:     7,
		Started: time.Unix(1000, 0),
	}, nil
}

func (h *supervised) SetUnit(_ context.Context, unit string, c host.UnitChange) error {
	h.restarts = append(h.restarts, c.Job+" "+unit)
	h.infos[childSocket] = host.Info{Ctime: time.Unix(8000, 0)}
	return nil
}

// TestChild: a daemon that its unit's program starts is as old as its socket, and not as the unit.
// A chmod of its file is not new content; and a restart of the unit makes it new.
func TestChild(t *testing.T) {
	at := func(changed, written int64) host.Info {
		return host.Info{Ctime: time.Unix(changed, 0), Mtime: time.Unix(written, 0)}
	}
	for name, c := range map[string]struct {
		file, folder host.Info
		want         converge.State
	}{
		"written between the unit's start and the daemon's": {at(1030, 1030), at(1030, 1030), things.UpToDate},
		"written since":               {at(2000, 2000), at(1030, 1030), things.Outdated},
		"an old file, moved in since": {at(2000, 500), at(2000, 2000), things.Outdated},
		"chmod since":                 {at(2000, 1030), at(1030, 1030), things.UpToDate},
	} {
		t.Run(name, func(t *testing.T) {
			h := &supervised{infos: map[string]host.Info{
				childSocket: at(1060, 1060), childFile: c.file, "/etc/x.d": c.folder,
			}}
			asked := ""
			ready := func(_ context.Context, _ host.View, unit string, _ []string) error {
				asked = unit
				return nil
			}

			daemon := things.NewChild("x.service", childSocket, []string{childFile}, ready, nil)
			is := must.Get(daemon.Look(t.Context(), h))(t)
			check.Equal(t, is, c.want, "state")

			must.OK(t, daemon.Make(t.Context(), h, things.UpToDate))
			isRestarted := len(h.restarts) == 1 && h.restarts[0] == "restart x.service"
			check.That(t, isRestarted && asked == "x.service", "%q, and asked %q", h.restarts, asked)
			is = must.Get(daemon.Look(t.Context(), h))(t)
			check.Equal(t, is, things.UpToDate, "after the restart")
		})
	}
}

// TestChildIsJudged: the unit is not restarted where its daemon would not start again.
func TestChildIsJudged(t *testing.T) {
	refused := errors.New("the daemon rejects its files")
	verdict := func(context.Context, host.View) error { return refused }
	h := &supervised{infos: map[string]host.Info{}}
	daemon := things.NewChild("x.service", childSocket, []string{childFile}, nil, verdict)
	err := daemon.Make(t.Context(), h, things.UpToDate)
	check.That(t, err != nil && strings.Contains(err.Error(), refused.Error()), "%v", err)
	check.That(t, h.restarts == nil, "restarted: %q", h.restarts)
}

// deadChild is a machine on which the unit's program does not start the daemon again.
type deadChild struct{ *supervised }

func (deadChild) SetUnit(context.Context, string, host.UnitChange) error { return nil }

// TestChildStaysAway: the error of a daemon that does not come back names a command for the unit
// that was restarted. A run that was ended meanwhile says so.
func TestChildStaysAway(t *testing.T) {
	old := map[string]host.Info{
		childSocket: {Ctime: time.Unix(1060, 0)},
		childFile:   {Ctime: time.Unix(2000, 0), Mtime: time.Unix(2000, 0)},
		"/etc/x.d":  {},
	}
	daemon := things.NewChild("x.service", childSocket, []string{childFile}, nil, nil)
	k0s := things.NewSupervised(childSocket, []string{childFile}, nil)
	h := deadChild{&supervised{infos: old}}

	synctest.Test(t, func(t *testing.T) {
		for command, d := range map[string]converge.Thing{
			"journalctl -u x.service":  daemon,
			"systemctl restart 'k0s*'": k0s,
		} {
			err := d.Make(t.Context(), h, things.UpToDate)
			var late *trouble.Error
			must.That(t, errors.As(err, &late), "%v", err)
			check.Has(t, err.Error(), "within 1m0s", "%s", command)
			check.Equal(t, strings.Join(late.Try, "\n"), command, "the fix")
		}
	})

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(converge.ErrStopped)
	err := daemon.Make(ctx, h, things.UpToDate)
	check.That(t, errors.Is(err, converge.ErrStopped), "%v", err)
}
