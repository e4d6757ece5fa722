// SPDX-License-Identifier: Apache-2.0

package docker

import (
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
	edited   []byte // daemon.json as it will be; nil if that is not known, as in an undo
	precheck things.PrecheckFunc
	verdict  things.PrecheckFunc // before a restart or a reload
}

// Restart wants Docker to run with its configuration; edited is daemon.json as it will be, nil
// where it is as it is.
func Restart(e facts.Engine, edited []byte, why string) converge.Want {
	unit := engine.UnitOf(e)
	verdict := engine.Fresh(e.Config, unit, Verdict)
	want := things.Judged(things.Restart(unit, []string{e.Config}, ready, why), verdict)
	want.Thing = restartThing{want.Thing.(converge.Follower), edited, Loads(e), verdict}
	return want
}

// NewRestart builds Docker's thing of kind restart again.
func NewRestart(unit string, files []string) converge.Thing {
	verdict := engine.Fresh(files[0], unit, Verdict)
	return restartThing{
		Follower: things.NewJudged(unit, files, ready, verdict),
		verdict:  verdict,
	}
}

// FormUnit is the form of Docker's thing of kind restart, for the journal.
const FormUnit = "docker"

// Ref is the restart's, with the form by which undo finds NewRestart.
func (r restartThing) Ref() converge.Ref {
	ref := r.Follower.Ref()
	ref.Form = FormUnit
	return ref
}

func (r restartThing) unit() string   { return r.Ref().Name }
func (r restartThing) config() string { return r.Ref().Reads[0] }

// Validate has Docker validate the files that it would read.
func (r restartThing) Validate(ctx context.Context, v host.View, _, _ converge.State) error {
	if r.precheck == nil {
		return nil
	}
	return r.precheck(ctx, v)
}

func (r restartThing) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := r.Follower.Look(ctx, v)
	if err != nil || state != things.Outdated {
		return state, err
	}

	unread, err := r.notLoaded(ctx, v)
	if err != nil {
		return state, nil // Docker does not answer: the times decide
	}
	if unread == (notLoaded{}) {
		return things.UpToDate, nil
	}
	return state, nil
}

// Make reloads Docker if that is enough, and else restarts it.
func (r restartThing) Make(ctx context.Context, h host.Host, to converge.State) error {
	unread, err := r.notLoaded(ctx, h)
	reloads := err == nil && unread.reload != "" && unread.restart == ""
	if to != things.UpToDate || !reloads {
		return r.Follower.Make(ctx, h, to)
	}

	running := host.Unit{PID: 1} // it has just answered
	if err := things.Verdict(ctx, h, running, r.unit(), r.verdict); err != nil {
		return err
	}
	if err := h.SetUnit(ctx, r.unit(), host.UnitChange{Job: "reload"}); err != nil {
		return err
	}
	err = engine.UntilDone(ctx, func(ctx context.Context) error {
		unread, err := r.notLoaded(ctx, h)
		if err == nil && unread != (notLoaded{}) {
			err = errors.New(unread.reload + unread.restart)
		}
		return err
	})
	if err == nil {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot reload the configuration of Docker: %v", err),
		Try:  []string{fmt.Sprintf("journalctl -u %s, which says why", r.unit())},
		Err:  err,
	}
}

// Breaks says what the change interrupts: a restart, if the file as it will be (toBe) needs one.
func (r restartThing) Breaks(
	ctx context.Context, v host.View, _, after converge.State,
) (what []string, clients map[string][]string, err error) {
	if after != things.UpToDate {
		return nil, nil, nil
	}
	info, file, err := r.ask(ctx, v)
	if err != nil {
		return []string{"restart-runtime"}, nil, nil // it does not run, or does not answer
	}
	if info.notLoaded(file.version, r.toBe(file)).restart == "" {
		return nil, nil, nil
	}
	if info.LiveRestoreEnabled || info.ContainersRunning == 0 {
		return []string{"restart-runtime"}, nil, nil
	}

	containers := trouble.Count(info.ContainersRunning, "running container")
	stopped := fmt.Sprintf("%s would stop: live-restore is off in %s", containers, r.config())
	what = []string{"restart-runtime", "stop-containers"}
	return what, map[string][]string{"stop-containers": {stopped}}, nil
}

// toBe is the file as it will be. In an undo, where that is not known, it is the present file
// without the keys that only a restart unsets.
func (r restartThing) toBe(file daemonFile) *jsonedit.Doc {
	if r.edited != nil {
		if doc, err := jsonedit.Parse(r.edited); err == nil {
			return doc
		}
	}

	doc := file.Doc
	for _, path := range [][]string{{defaultKey}, {featuresKey, "cdi"}} {
		doc = without(doc, path)
	}
	return doc
}

// without returns a document without a key; the document itself if that is not possible.
func without(doc *jsonedit.Doc, path []string) *jsonedit.Doc {
	rest, err := doc.Delete(path...)
	if err != nil {
		return doc
	}
	parsed, err := jsonedit.Parse(rest)
	if err != nil {
		return doc
	}
	return parsed
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

// ask asks Docker what it has loaded. It fails if Docker does not run or does not answer: gpuadm
// does not start Docker to ask it.
func (r restartThing) ask(ctx context.Context, v host.View) (daemonInfo, daemonFile, error) {
	unit, err := v.Unit(ctx, r.unit())
	if err != nil {
		return daemonInfo{}, daemonFile{}, err
	}
	if unit.PID == 0 {
		return daemonInfo{}, daemonFile{}, fmt.Errorf("%s does not run", r.unit())
	}

	e, err := engine.Reading(ctx, v, r.config(), r.unit())
	if err != nil {
		return daemonInfo{}, daemonFile{}, err
	}
	if e.Name != "docker" {
		return daemonInfo{}, daemonFile{}, fmt.Errorf("no Docker reads %s", r.config())
	}
	doc, err := jsonedit.Parse(e.Files[0].Data)
	if err != nil {
		return daemonInfo{}, daemonFile{}, err
	}
	info, err := askDocker(ctx, v, e.Socket)
	return info, daemonFile{doc, e.Version}, err
}

func askDocker(ctx context.Context, v host.View, socket string) (daemonInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, engine.AnswerPatience)
	defer cancel()

	var info daemonInfo
	answer, err := host.AskSocket(ctx, v, socket, "/info")
	if err == nil {
		err = json.Unmarshal(answer, &info)
	}
	return info, err
}

// notLoaded says, in a clause each, what Docker would load by a reload, and what only by a restart.
type notLoaded struct {
	reload  string
	restart string
}

func (r restartThing) notLoaded(ctx context.Context, v host.View) (notLoaded, error) {
	info, file, err := r.ask(ctx, v)
	if err != nil {
		return notLoaded{}, err
	}
	return info.notLoaded(file.version, file.Doc), nil
}

// notLoaded compares what Docker has loaded with a file. It ignores a runtime that Docker still has
// and that the file no longer has: nothing uses it.
func (info daemonInfo) notLoaded(version string, want *jsonedit.Doc) notLoaded {
	var unread notLoaded
	for _, name := range want.Keys(runtimesKey) {
		program, shim := programOf(want, name)
		loaded, found := info.Runtimes[name]
		if !found || !shim && loaded.Path != program {
			unread.reload = fmt.Sprintf("it has not loaded the runtime %s", name)
		}
	}

	var byDefault string
	_ = json.Unmarshal(want.Text(defaultKey), &byDefault) // Docker refuses what is not a string
	current := info.DefaultRuntime
	switch {
	case byDefault != "" && current != byDefault:
		unread.reload = fmt.Sprintf("its default runtime is %s, not %s", current, byDefault)
	case byDefault == "" && current != "runc" && info.Runtimes[current].Path != "":
		unread.restart = fmt.Sprintf("its default runtime is still %s", current)
	}

	// With folders of its own in the file the list may be empty for another reason.
	has, on := takesCDI(version)
	if !has || want.Text("cdi-spec-dirs") != nil {
		return unread
	}
	if text := want.Text(featuresKey, "cdi"); text != nil {
		on = string(text) == "true"
	}
	if on != (len(info.CDISpecDirs) > 0) {
		unread.restart = "CDI is set up only when it starts"
	}
	return unread
}

// ready waits until a restarted Docker answers, and has loaded its file.
func ready(ctx context.Context, v host.View, unit string, files []string) error {
	began := time.Now()
	r := restartThing{Follower: things.NewRestart(unit, files, nil)}
	var unread notLoaded
	err := engine.UntilDone(ctx, func(ctx context.Context) error {
		var err error
		unread, err = r.notLoaded(ctx, v)
		return err
	})

	switch {
	case errors.As(err, &host.Later{}):
		return nil // no daemon runs here
	case err != nil:
		return fmt.Errorf("docker did not answer within %v: %w", time.Since(began).Round(time.Second), err)
	case unread.reload != "":
		return fmt.Errorf("docker runs without its configuration: %s", unread.reload)
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

	if _, found := info.Runtimes[h.Name]; !found {
		return fmt.Errorf("docker has not loaded the runtime %s", h.Name)
	}
	if h.Default && info.DefaultRuntime != h.Name {
		return fmt.Errorf("docker's default runtime is %s, not %s", info.DefaultRuntime, h.Name)
	}
	return nil
}
