// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const daemonJSON = "/etc/docker/daemon.json"

func nvidia() engine.Handler {
	return engine.Handler{Name: "nvidia", Binary: engine.Binary, CDI: true}
}

// The advice about a broken file names no unit: the snap's is snap.docker.dockerd.service.
func TestEditBrokenFile(t *testing.T) {
	const snap = "/var/snap/docker/current/config/daemon.json"
	_, err := Edit(snap, "28.4.0", nvidia(), []byte("{"))
	var told *trouble.Error
	must.That(t, errors.As(err, &told), "%v", err)
	check.List(t, told.Try, []string{"fix it; Docker refuses it too"}, "advice")
}

func TestEditDocker(t *testing.T) {
	byDefault := nvidia()
	byDefault.Default = true
	entry := "\"runtimes\": {\n    \"nvidia\": {\n      \"path\": \"" + engine.Binary + "\"\n    }\n  }"
	cdi := ",\n  \"features\": {\n    \"cdi\": true\n  }"
	for name, c := range map[string]struct {
		version, found string // "" is not a file
		h              engine.Handler
		want           string
	}{
		"no file, 24":       {"24.0.9", "", nvidia(), "{\n  " + entry + "\n}\n"},
		"no file, 26":       {"26.1.5", "", nvidia(), "{\n  " + entry + cdi + "\n}\n"},
		"no file, 28.2":     {"28.2.0", "", nvidia(), "{\n  " + entry + "\n}\n"},
		"version not known": {"", "", nvidia(), "{\n  " + entry + "\n}\n"},
		"the default":       {"20.10.24", "{}", byDefault, "{\n  " + entry + ",\n  \"default-runtime\": \"nvidia\"\n}"},
		"another default":   {"24.0.9", `{"default-runtime": "crun"}`, byDefault, `{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}}`},
		"big numbers, &":    {"24.0.9", `{"max-concurrent-uploads": 9007199254740993, "x": "a&b"}`, nvidia(), `{"max-concurrent-uploads": 9007199254740993, "x": "a&b", "runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}}`},
		"CDI switched off":  {"26.1.5", `{"features": {"cdi": false}, "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}`, nvidia(), `{"features": {"cdi": false}, "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}`},
		"a shim of others":  {"28.5.2", `{"runtimes": {"nvidia": {"runtimeType": "io.containerd.runc.v2"}}}`, nvidia(), `{"runtimes": {"nvidia": {"runtimeType": "io.containerd.runc.v2"}}}`},
		"other features":    {"26.1.5", `{"features": {"buildkit": true}, "runtimes": {"nvidia": {"Path": "/x"}}}`, nvidia(), `{"features": {"buildkit": true, "cdi": true}, "runtimes": {"nvidia": {"Path": "/x"}}}`},
	} {
		var found []byte
		if c.found != "" {
			found = []byte(c.found)
		}
		got, err := Edit(daemonJSON, c.version, c.h, found)
		check.That(t, err == nil && string(got) == c.want, "%s:\n%s\nwant\n%s\n%v", name, got, c.want, err)
		again, err := Edit(daemonJSON, c.version, c.h, got)
		check.That(t, err == nil && bytes.Equal(again, got), "%s: a second edit: %s %v", name, again, err)
	}

	for found, why := range map[string]string{"{\n  // no\n}": "line 2: ", `{"runtimes": []}`: "runtimes is not an object", `{"features": {}, "features": {}}`: "there twice"} {
		_, err := Edit(daemonJSON, "26.1.5", nvidia(), []byte(found))
		trouble := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &trouble) && strings.Contains(trouble.What, why) && len(trouble.Try) > 0, "%s: %v, want %q", found, err, why)
	}

	_, err := Edit(daemonJSON, "26.1.5", engine.Handler{
		Name:   "runc",
		Binary: engine.Binary,
	}, nil)
	check.That(t, err != nil, "the name of Docker's own runtime is taken")
}

func TestTakeOutDocker(t *testing.T) {
	const before = `{"log-driver": "local"}`
	h := nvidia()
	h.Default = true
	edited := must.Get(Edit(daemonJSON, "26.1.5", h, []byte(before)))(t)
	after := string(edited)
	plain := must.Get(Edit(daemonJSON, "26.1.5", nvidia(), []byte(before)))(t)
	for name, c := range map[string]struct{ after, old, new, rest, left string }{
		"as it was":           {after, "", "", before, ""},
		"a key of others":     {after, `{"log-driver"`, `{"debug": true, "log-driver"`, `{"debug": true, "log-driver": "local"}`, ""},
		"a runtime of others": {after, `"runtimes": {`, `"runtimes": {"kata": {"path": "/k"}, `, `{"log-driver": "local", "runtimes": {"kata": {"path": "/k"}}}`, ""},
		"arguments of others": {string(plain), `runtime"}`, `runtime", "runtimeArgs": ["--debug"]}`, `{"log-driver": "local", "runtimes": {"nvidia": {"path": "` + engine.Binary + `", "runtimeArgs": ["--debug"]}}}`, "runtimes.nvidia is there, with runtimeArgs"},
		"default of others":   {string(plain), `{"log-driver"`, `{"default-runtime": "nvidia", "log-driver"`, `{"default-runtime": "nvidia", "log-driver": "local", "runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}}`, "runtimes.nvidia is there, as the default runtime"},
		"program of others":   {string(plain), engine.Binary, "/x", `{"log-driver": "local", "runtimes": {"nvidia": {"path": "/x"}}}`, `runtimes.nvidia.path is "/x"`},
	} {
		found := strings.Replace(c.after, c.old, c.new, 1)
		rest, left, err := TakeOut([]byte(before), []byte(c.after), []byte(found))
		check.That(t, err == nil && string(rest) == c.rest && strings.Contains(strings.Join(left, "; "), c.left) && (c.left == "") == (len(left) == 0),
			"%s: %s, left %q, %v; want %s", name, rest, left, err, c.rest)
	}
}

// FuzzDockerEdit holds for any daemon.json: no panic; the result is JSON, has all that was there in
// its order and letter by letter, and the runtime; a second edit changes nothing; and taking the
// edit out beside another one leaves what that other one alone makes.
func FuzzDockerEdit(f *testing.F) {
	for _, text := range []string{
		"", "{}", "{\n    \"log-driver\": \"json-file\",\n    \"log-opts\": { \"max-size\": \"10m\" }\n}\n", `{"runtimes":{"nvidia":{"path":"x"}}}`,
		"{\r\n\t\"features\": {\"cdi\": false},\r\n\t\"default-runtime\": \"runc\"\r\n}", `{"max-concurrent-uploads": 9007199254740993, "features": null}`,
	} {
		f.Add([]byte(text), byte(0))
		f.Add([]byte(text), byte(5))
	}

	f.Fuzz(func(t *testing.T, text []byte, choice byte) {
		h := nvidia()
		h.Default = choice%2 == 1
		version := []string{"20.10.24", "26.1.5", "28.5.2"}[choice/2%3]
		var out []byte
		var err error
		alloc.Most(t, 4000, len(text), func() {
			out, err = Edit(daemonJSON, version, h, text)
		})
		if err != nil {
			must.That(t, !strings.Contains(err.Error(), "internal error"), "%q: %v", text, err)
			return
		}
		was, _ := jsonedit.Parse(text)
		is, err := jsonedit.Parse(out)
		must.That(t, err == nil && json.Valid(out), "%q became %q: %v", text, out, err)
		if program, _ := programOf(is, "nvidia"); program == "" || h.Default && string(is.Text(defaultKey)) != `"nvidia"` {
			t.Fatalf("%q became %q", text, out)
		}
		if !h.Default && !within(text, out) {
			t.Fatalf("not all bytes of %q are in %q", text, out)
		}
		for _, key := range was.Keys() {
			if key != runtimesKey && key != featuresKey && key != defaultKey && !bytes.Equal(was.Text(key), is.Text(key)) {
				t.Fatalf("%q: %s became %s", key, was.Text(key), is.Text(key))
			}
		}

		if again, err := Edit(daemonJSON, version, h, out); err != nil || !bytes.Equal(again, out) {
			t.Fatalf("a second edit: %q, then %q, %v", out, again, err)
		}
		other := func(d *jsonedit.Doc) *jsonedit.Doc {
			text, err := d.Set("1", "made by others")
			must.OK(t, err)
			d, err = jsonedit.Parse(text)
			must.OK(t, err)
			return d
		}

		found := other(is)
		rest, left, err := TakeOut(text, out, found.Text())
		must.That(t, err == nil && len(left) == 0, "%q to %q cannot be taken out: %q, %v", text, out, left, err)
		d, err := jsonedit.Parse(rest)
		must.That(t, err == nil && len(jsonedit.Changes(other(was), d)) == 0, "%q to %q taken out: %q, %v", text, out, rest, err)
	})
}

// within says whether a text is another without some of its bytes.
func within(part, whole []byte) bool {
	for _, c := range whole {
		if len(part) > 0 && part[0] == c {
			part = part[1:]
		}
	}
	return len(part) == 0
}

//go:embed testdata/docker.txtar
var dockerFiles string

// dockerHost is a machine with Docker, its daemon.json changed since Docker's start, and what
// Docker says of itself.
func dockerHost(t *testing.T, version, file string, info map[string]any) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte(fmt.Sprintf(dockerFiles, daemonJSON, version)))
	must.OK(t, err)
	must.OK(t, n.WriteFile(daemonJSON, []byte(file), host.Attr{Mode: 0o644}))
	if info != nil {
		n.Serve("/run/docker.sock", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/info" {
				_ = json.NewEncoder(w).Encode(info)
			}
		}))
	}

	return n
}

// What Docker says that it has loaded decides whether it runs with its file, and what a change
// interrupts.
func TestDockerRestart(t *testing.T) {
	type info = map[string]any
	runtimes := func(names ...string) info {
		all := info{"runc": info{"path": "runc"}, "io.containerd.runc.v2": info{"path": "runc"}}
		for _, name := range names {
			all[name] = info{"path": engine.Binary}
		}
		return all
	}

	file := `{"runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}}`
	withCDI := `{"runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}, "features": {"cdi": true}}`
	dirs := []string{"/etc/cdi", "/var/run/cdi"}
	for name, c := range map[string]struct {
		version, file string
		info          info
		state         converge.State
		breaks        string
	}{
		"loaded":               {"24.0.9", file, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia")}, things.UpToDate, ""},
		"to be reloaded":       {"24.0.9", file, info{"DefaultRuntime": "runc", "Runtimes": runtimes(), "ContainersRunning": 3}, things.Outdated, ""},
		"CDI, none runs":       {"26.1.5", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia")}, things.Outdated, "restart-runtime"},
		"CDI, live-restore":    {"26.1.5", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "ContainersRunning": 3, "LiveRestoreEnabled": true}, things.Outdated, "restart-runtime"},
		"CDI, they would end":  {"26.1.5", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "ContainersRunning": 3}, things.Outdated, "restart-runtime stop-containers"},
		"CDI is on":            {"26.1.5", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "CDISpecDirs": dirs}, things.UpToDate, ""},
		"CDI is not a key yet": {"24.0.9", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia")}, things.UpToDate, ""},
		"on by default":        {"28.2.0", file, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "CDISpecDirs": dirs}, things.UpToDate, ""},
		"the old default":      {"24.0.9", "{}", info{"DefaultRuntime": "nvidia", "Runtimes": runtimes("nvidia"), "ContainersRunning": 1}, things.Outdated, "restart-runtime stop-containers"},
		"one it still knows":   {"24.0.9", "{}", info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "ContainersRunning": 1}, things.UpToDate, ""},
		"does not answer":      {"26.1.5", withCDI, nil, things.Outdated, "restart-runtime"},
	} {
		n := dockerHost(t, c.version, c.file, c.info)
		f := restartThing{NewRestart("docker.service", []string{daemonJSON}).(restartThing).Follower, []byte(c.file), nil, nil}
		if state, err := f.Look(t.Context(), n); err != nil || state != c.state {
			t.Errorf("%s: %s, want %s: %v", name, state, c.state, err)
		}
		what, clients, err := f.Breaks(t.Context(), n, things.Outdated, things.UpToDate)
		check.That(t, err == nil && strings.Join(what, " ") == c.breaks && (len(clients) > 0) == strings.Contains(c.breaks, "stop-containers"),
			"%s: breaks %v %v, want %s: %v", name, what, clients, c.breaks, err)
	}
	// In an undo the file to be is not known: it is the present one, without what only a restart
	// takes away.
	n := dockerHost(t, "26.1.5", withCDI, info{"DefaultRuntime": "runc", "Runtimes": runtimes("nvidia"), "CDISpecDirs": dirs, "ContainersRunning": 1})
	what, _, _ := NewRestart("docker.service", []string{daemonJSON}).(converge.Disruptor).Breaks(t.Context(), n, things.Outdated, things.UpToDate)
	check.That(t, len(what) == 2, "undo breaks %v", what)
}

// A reload is enough for a runtime, and Docker is restarted for CDI. A reload that Docker does not
// take is said.
func TestDockerMake(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		job  string
	}{
		"runtime": {`{"runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}}`, "reload"},
		"CDI":     {`{"features": {"cdi": true}}`, "restart"},
	} {
		info := map[string]any{"DefaultRuntime": "runc", "Runtimes": map[string]any{"runc": map[string]any{"path": "runc"}}}
		n := dockerHost(t, "26.1.5", c.file, info)
		h := &jobs{Node: n, then: func() {
			info["Runtimes"].(map[string]any)["nvidia"] = map[string]any{"path": engine.Binary}
			info["CDISpecDirs"] = []string{"/etc/cdi"}
		}}
		if name == "runtime" {
			h.then = func() {
				info["Runtimes"].(map[string]any)["nvidia"] = map[string]any{"path": engine.Binary}
			}
		}

		err := NewRestart("docker.service", []string{daemonJSON}).Make(t.Context(), h, things.UpToDate)
		check.That(t, err == nil && strings.Join(h.asked, " ") == c.job, "%s: %v, want %s: %v", name, h.asked, c.job, err)
	}
}

// jobs notes what is asked of units.
type jobs struct {
	*simhost.Node
	asked []string
	then  func()
}

func (j *jobs) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	j.asked = append(j.asked, to.Job)
	if to.Job == "restart" {
		if err := j.Node.SetUnit(ctx, name, to); err != nil {
			return err
		}
	}

	j.then()
	return nil
}

func TestDockerAnswers(t *testing.T) {
	h := nvidia()
	h.Default = true
	e := facts.Engine{Name: "docker", Socket: "/run/docker.sock"}
	for _, c := range []struct {
		info map[string]any
		err  string
	}{
		{map[string]any{"Runtimes": map[string]any{"nvidia": map[string]any{}}, "DefaultRuntime": "nvidia"}, ""},
		{map[string]any{"Runtimes": map[string]any{}}, "has not loaded the runtime nvidia"},
		{map[string]any{"Runtimes": map[string]any{"nvidia": map[string]any{}}, "DefaultRuntime": "runc"}, "default runtime is runc"},
	} {
		n := dockerHost(t, "26.1.5", "{}", c.info)
		err := Answers(t.Context(), n, e, h)
		check.That(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)), "%v, want %q", err, c.err)
	}
}

func TestDockerNotes(t *testing.T) {
	e := facts.Engine{
		Name:    "docker",
		Version: "20.10.24",
		Socket:  "/run/docker.sock",
		Config:  daemonJSON,
		Files:   []facts.File{{Path: daemonJSON}},
	}
	got := strings.Join(Notes(e, facts.Kubelet{Endpoint: "unix:///run/containerd/containerd.sock"}, nvidia()), "\n")
	check.That(t, strings.Contains(got, "kubelet talks to unix:///run/containerd/containerd.sock, not to Docker") && strings.Contains(got, "has no CDI"), "%v", got)
	e.Version, e.Files[0].Data = "28.5.2", []byte(`{"features": {"cdi": false}}`)
	got = strings.Join(Notes(e, facts.Kubelet{}, nvidia()), "\n")
	check.That(t, strings.Contains(got, "switches CDI off") && strings.Contains(got, "by --gpus or --runtime nvidia") && !strings.Contains(got, "kubelet"), "%v", got)
	e.Files[0].Data = nil
	if got := Notes(e, facts.Kubelet{}, nvidia()); len(got) > 0 {
		t.Error(got)
	}
}

// TestKeyInUnit: a key that daemon.json and the unit's options both have is named, with the file
// that has the option; dockerd 26.1.5 refuses each of these with "specified both as a flag and in
// the configuration file", and takes the rest.
func TestKeyInUnit(t *testing.T) {
	const unit = "/etc/systemd/system/docker.service.d/override.conf"
	for _, x := range []struct{ args, file, key, says string }{
		{"-H fd://", `{"hosts": ["tcp://127.0.0.1:2375"]}`, "hosts", "docker.service starts it with -H: it is in " + unit},
		{"--host=fd://", `{"hosts": []}`, "hosts", "docker.service starts it with --host: it is in " + unit},
		{"--data-root /y", `{"data-root": "/x"}`, "data-root", "with --data-root"},
		{"--label a=b", `{"labels": ["c=d"]}`, "labels", "with --label"},
		{"--default-runtime=runc", `{"default-runtime": "nvidia"}`, "default-runtime", "with --default-runtime"},
		{"--insecure-registry a.example", `{"insecure-registries": ["b.example"]}`, "insecure-registries", "with --insecure-registry"},
		{"-H fd:// --live-restore", `{"live-restore": true}`, "live-restore", "with --live-restore"},
		{"-H fd:// -D", `{"debug": true}`, "debug", "with -D"},
		{"-H fd://", `{"data-root": "/x"}`, "", ""},
		{"--add-runtime nvidia=/usr/bin/nvidia-container-runtime", `{"runtimes": {"nvidia": {"path": "x"}}}`, "", ""},
	} {
		e := facts.Engine{
			Name: "docker", Unit: "docker.service", Config: "/etc/docker/daemon.json", Started: []string{unit},
			Args: append([]string{"/usr/sbin/dockerd"}, strings.Fields(x.args)...),
		}
		key := keyInUnit(e, []byte(x.file))
		check.Equal(t, key, x.key, "%s beside %s:", x.args, x.file)
		if key == "" {
			continue
		}
		n := must.Get(simhost.New([]byte("-- " + unit[1:] + " --\n[Service]\nExecStart=/usr/sbin/dockerd " + x.args + "\n")))(t)
		told := (*trouble.Error)(nil)
		must.That(t, errors.As(inBoth(n, e, key, "x"), &told), "no trouble")
		check.Has(t, strings.Join(told.Because, "\n"), x.says, "%s:", x.args)
	}
}

// TestEditStated: the program that the spec names replaces another entry's; else that entry stays.
func TestEditStated(t *testing.T) {
	const found = `{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	for program, want := range map[string]string{
		engine.Binary: found,
		"/opt/x":      `{"runtimes": {"nvidia": {"path": "/opt/x"}}}`,
	} {
		h := engine.Handler{Name: "nvidia", Binary: program}
		edited := must.Get(Edit(daemonJSON, "26.1.5", h, []byte(found)))(t)
		check.Equal(t, string(edited), want, "%s:", program)
	}
}
