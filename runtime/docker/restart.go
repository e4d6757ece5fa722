// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// restartThing is things.Restart for Docker. Docker's own answer about what it has loaded wins over
// the times of file and process. Where a reload suffices, gpuadm does not restart Docker: without
// live-restore a restart stops all containers.
// Sources: "Configuration reload behavior" in https://docs.docker.com/reference/cli/dockerd/;
// reloadPlatform in daemon/reload_unix.go of https://github.com/moby/moby at v26.1.5: a reload adds
// runtimes and sets default-runtime, and removes neither; CDI is set up once at the start, in
// cmd/dockerd/daemon.go; https://docs.docker.com/engine/daemon/live-restore/.
type restartThing struct {
	converge.Follower
	edited []byte // daemon.json as it will be; nil if that is not known, as in an undo
	judge  things.PrecheckFunc
}

// Validate has Docker validate the files that it would read.
func (f restartThing) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	if f.judge == nil {
		return nil
	}
	return f.judge(ctx, v)
}

// FormUnit is the form of Docker's thing of kind restart, for the journal.
const FormUnit = "docker"

// Ref is the restart's, with the form by which undo finds NewRestart.
func (f restartThing) Ref() converge.Ref {
	r := f.Follower.Ref()
	r.Form = FormUnit
	return r
}

// NewRestart builds Docker's thing of kind restart again.
func NewRestart(unit string, files []string) converge.Thing {
	return restartThing{Follower: things.NewRestart(unit, files, ready)}
}

func (f restartThing) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := f.Follower.Look(ctx, v)
	if err != nil || state != things.Outdated {
		return state, err
	}
	d, err := f.lacks(ctx, v)
	if err == nil && d == (notLoaded{}) {
		return things.UpToDate, nil
	}
	return state, nil // if Docker does not answer, the times decide
}

// Make reloads Docker if that is enough, and else restarts it.
func (f restartThing) Make(ctx context.Context, h host.Host, to converge.State) error {
	d, err := f.lacks(ctx, h)
	if to != things.UpToDate || err != nil || d.restart != "" || d.reload == "" {
		return f.Follower.Make(ctx, h, to)
	}
	if err := h.SetUnit(ctx, f.Ref().Name, host.UnitChange{Job: "reload"}); err != nil {
		return err
	}
	err = engine.UntilDone(ctx, func(ctx context.Context) error {
		d, err := f.lacks(ctx, h)
		if err == nil && d != (notLoaded{}) {
			err = errors.New(d.reload + d.restart)
		}
		return err
	})
	if err != nil {
		return &trouble.Error{
			What: fmt.Sprintf("cannot reload the configuration of Docker: %v", err), Err: err,
			Try: []string{fmt.Sprintf("journalctl -u %s, which says why", f.Ref().Name)},
		}
	}
	return nil
}

// Breaks says what the change interrupts: a restart, if the file as it will be (toBe) needs one.
func (f restartThing) Breaks(ctx context.Context, v host.View, _, after converge.State) (what []string, clients map[string][]string, err error) {
	if after != things.UpToDate {
		return nil, nil, nil
	}
	info, file, err := f.asked(ctx, v)
	if err != nil {
		return []string{"restart-runtime"}, nil, nil // it does not run, or does not answer
	}
	switch d := info.lacks(file.version, f.toBe(file)); {
	case d.restart == "":
		return nil, nil, nil
	case info.LiveRestoreEnabled || info.ContainersRunning == 0:
		return []string{"restart-runtime"}, nil, nil
	}
	running := fmt.Sprintf("%s would stop: live-restore is off in %s", trouble.Count(info.ContainersRunning, "running container"), f.Ref().Reads[0])
	return []string{"restart-runtime", "stop-containers"}, map[string][]string{"stop-containers": {running}}, nil
}

// toBe is the file as it will be. In an undo, where that is not known, it is the present file
// without the keys that only a restart unsets.
func (f restartThing) toBe(file daemonFile) *jsonedit.Doc {
	if f.edited != nil {
		if d, err := jsonedit.Parse(f.edited); err == nil {
			return d
		}
	}
	d := file.Doc
	for _, path := range [][]string{{defaultKey}, {featuresKey, "cdi"}} {
		if out, err := d.Delete(path...); err == nil {
			if next, err := jsonedit.Parse(out); err == nil {
				d = next
			}
		}
	}
	return d
}

// daemonFile is daemon.json as it is, and what is known of the Docker that reads it.
type daemonFile struct {
	*jsonedit.Doc
	version string
}

// daemonInfo is a part of what Docker says of itself: GET /info in
// https://docs.docker.com/reference/api/engine/; api/types/types.go at v20.10.24 and
// api/types/system/info.go at v26.1.5 of https://github.com/moby/moby.
type daemonInfo struct {
	ContainersRunning  int
	LiveRestoreEnabled bool
	DefaultRuntime     string
	CDISpecDirs        []string // empty where CDI is off; from 25.0 on
	Runtimes           map[string]struct {
		Path string `json:"path"`
	}
}

// asked asks Docker what it has loaded. It fails if Docker does not run or does not answer: gpuadm
// does not start Docker to ask it.
func (f restartThing) asked(ctx context.Context, v host.View) (info daemonInfo, file daemonFile, err error) {
	u, err := v.Unit(ctx, f.Ref().Name)
	if err != nil {
		return info, file, err
	}
	if u.PID == 0 {
		return info, file, fmt.Errorf("%s does not run", f.Ref().Name)
	}
	e, err := engine.Reading(ctx, v, f.Ref().Reads[0], f.Ref().Name)
	if err != nil || e.Name != "docker" {
		return info, file, cmp.Or(err, fmt.Errorf("no Docker reads %s", f.Ref().Reads[0]))
	}
	file.version = e.Version
	if file.Doc, err = jsonedit.Parse(e.Files[0].Data); err != nil {
		return info, file, err
	}
	info, err = askDocker(ctx, v, e.Socket)
	return info, file, err
}

func askDocker(ctx context.Context, v host.View, socket string) (info daemonInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, engine.AnswerPatience)
	defer cancel()
	answer, err := host.AskSocket(ctx, v, socket, "/info")
	if err == nil {
		err = json.Unmarshal(answer, &info)
	}
	return info, err
}

// notLoaded says, in a clause each, what Docker would load by a reload, and what only by a restart.
type notLoaded struct{ reload, restart string }

func (f restartThing) lacks(ctx context.Context, v host.View) (notLoaded, error) {
	info, file, err := f.asked(ctx, v)
	if err != nil {
		return notLoaded{}, err
	}
	return info.lacks(file.version, file.Doc), nil
}

// lacks compares what Docker has loaded with a file. It ignores a runtime that Docker still has and
// that the file no longer has: nothing uses it.
func (info daemonInfo) lacks(version string, want *jsonedit.Doc) (d notLoaded) {
	for _, name := range want.Keys(runtimesKey) {
		program, shim := programOf(want, name)
		if is, there := info.Runtimes[name]; !there || !shim && is.Path != program {
			d.reload = fmt.Sprintf("it has not loaded the runtime %s", name)
		}
	}
	var named string
	_ = json.Unmarshal(want.Text(defaultKey), &named) // Docker itself refuses what is no string
	switch {
	case named != "" && info.DefaultRuntime != named:
		d.reload = fmt.Sprintf("its default runtime is %s, not %s", info.DefaultRuntime, named)
	case named == "" && info.DefaultRuntime != "runc" && info.Runtimes[info.DefaultRuntime].Path != "":
		d.restart = fmt.Sprintf("its default runtime is still %s", info.DefaultRuntime)
	}
	has, byDefault := takesCDI(version)
	if has && want.Text("cdi-spec-dirs") == nil { // else the list may be empty for another reason
		on := byDefault
		if said := want.Text(featuresKey, "cdi"); said != nil {
			on = string(said) == "true"
		}
		if on != (len(info.CDISpecDirs) > 0) {
			d.restart = "CDI is set up only when it starts"
		}
	}
	return d
}

// ready waits until a restarted Docker answers, and has loaded its file.
func ready(ctx context.Context, v host.View, unit string, files []string) error {
	began := time.Now()
	f := restartThing{Follower: things.NewRestart(unit, files, nil)}
	var d notLoaded
	err := engine.UntilDone(ctx, func(ctx context.Context) (err error) {
		d, err = f.lacks(ctx, v)
		return err
	})
	switch {
	case errors.As(err, &host.Later{}):
		return nil // no daemon runs here
	case err != nil:
		return fmt.Errorf("docker did not answer within %v: %w", time.Since(began).Round(time.Second), err)
	case d.reload != "":
		return fmt.Errorf("docker runs without its configuration: %s", d.reload)
	}
	return nil // its default may be an option of its unit, and CDI may be off for want of folders
}

// Answers says whether Docker answers now, and has loaded the runtime that the spec asks for.
func Answers(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	info, err := askDocker(ctx, v, e.Socket)
	if errors.As(err, &host.Later{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("docker does not answer at %s: %w", e.Socket, err)
	}
	if _, there := info.Runtimes[h.Name]; !there {
		return fmt.Errorf("docker has not loaded the runtime %s", h.Name)
	}
	if h.Default && info.DefaultRuntime != h.Name {
		return fmt.Errorf("docker's default runtime is %s, not %s", info.DefaultRuntime, h.Name)
	}
	return nil
}
