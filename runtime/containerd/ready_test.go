// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func message(fields ...any) (m []byte) {
	for i := 0; i < len(fields); i += 2 {
		n := protowire.Number(fields[i].(int))
		switch v := fields[i+1].(type) {
		case string:
			m = protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), v)
		case []byte:
			m = protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), v)
		case bool:
			m = protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), protowire.EncodeBool(v))
		}
	}
	return m
}

func status(ready bool, config string) []byte {
	conditions := message(1, message(1, "RuntimeReady", 2, ready, 3, "why", 4, "words"), 1, message(1, "NetworkReady", 2, false))
	return message(1, conditions, 2, message(1, "config", 2, config), 2, message(1, "golang", 2, "x"))
}

func TestAnswersStatus(t *testing.T) {
	const with = `{"containerd":{"runtimes":{"runc":{},"nvidia":{}}}}`
	for name, c := range map[string]struct {
		status  []byte
		handler string
		err     string
	}{
		"ready":           {status(true, with), "nvidia", ""},
		"not ready":       {status(false, with), "", "not ready: words"},
		"handler missing": {status(true, `{"containerd":{"runtimes":{"runc":{}}}}`), "nvidia", "without the handler nvidia"},
		"tells nothing":   {status(true, ""), "nvidia", ""},
		"not JSON":        {status(true, "{"), "nvidia", ""},
		"empty":           {nil, "", ""},
	} {
		err := Answers(t.Context(), &slow{
			calls: 2,
			says:  c.status,
		}, facts.Engine{}, engine.Handler{Name: c.handler})
		check.That(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)), "%s: %v, want %q", name, err, c.err)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(status(true, `{"containerd":{}}`))
	f.Add(status(true, "")[:20])
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc.Most(t, 1000, len(data), func() {
			engine.Status(t.Context(), &slow{calls: 2, says: data}, facts.Engine{})
		})
	})
}

// slow answers at the third call.
type slow struct {
	host.View
	calls int
	says  []byte
	then  error
}

func (s *slow) Call(context.Context, string, string, []byte) ([]byte, error) {
	if s.calls++; s.calls < 3 {
		return nil, errors.New("connection refused")
	}
	return s.says, s.then
}

func TestAnswers(t *testing.T) {
	s := (&slow{says: status(true, "")})
	check.That(t, Answers(t.Context(), s, facts.Engine{}, engine.Handler{Name: "nvidia"}) == nil && s.calls == 3, "a daemon that takes its time: %d calls", s.calls)
	err := Answers(t.Context(), &slow{then: host.Failed("call", "/x.sock", &host.CallError{
		Code:    12,
		Message: "unknown service",
	})}, facts.Engine{}, engine.Handler{})
	check.That(t, err != nil && strings.Contains(err.Error(), "CRI plugin does not"), "a daemon without CRI: %v", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.That(t, Answers(ctx, &slow{}, facts.Engine{}, engine.Handler{}) != nil, "did not stop when told to")
}

// unread is a machine on which no file can be read.
type unread struct{ host.View }

func (unread) Stat(string) (host.Info, error)  { return host.Info{}, syscall.EIO }
func (unread) ReadFile(string) ([]byte, error) { return nil, syscall.EIO }
func (unread) Call(context.Context, string, string, []byte) ([]byte, error) {
	return status(true, `{"containerd":{"runtimes":{"runc":{}}}}`), nil
}

// TestUnreadFile: a file that cannot be read does not count as removed by an undo, after which
// gpuadm asks for no handler.
func TestUnreadFile(t *testing.T) {
	err := serves("/run/x.sock", []string{"/etc/x.toml"}, "nvidia")(t.Context(), unread{}, "", nil)
	check.That(t, errors.Is(err, syscall.EIO), "k0s's daemon: %v", err)

	same := func(found []byte) ([]byte, error) { return found, nil }
	_, err = isEdited(unread{}, "/etc/x.toml", same)
	check.That(t, errors.Is(err, syscall.EIO), "the file: %v", err)
}

// machineWith is a machine with one program, or none where mode is 0.
type machineWith struct {
	host.View
	mode  fs.FileMode
	fails string // what its --version says on standard error
	image bool
	asked int
}

func (m *machineWith) Live() bool { return !m.image }
func (m *machineWith) Runs() bool { return !m.image }

func (m *machineWith) Stat(string) (host.Info, error) {
	if m.mode == 0 {
		return host.Info{}, fs.ErrNotExist
	}
	return host.Info{Mode: m.mode}, nil
}

func (m *machineWith) Ask(_ context.Context, argv ...string) ([]byte, error) {
	m.asked++
	if m.fails != "" {
		return nil, &host.CommandError{
			Argv:   argv,
			Code:   1,
			Stderr: m.fails,
			Cause:  errors.New("exit status 1"),
		}
	}

	return []byte("NVIDIA Container Runtime version 1.18.0\n"), nil
}

// TestDefaultNeedsItsProgram: nothing becomes the default that cannot start a container. The
// program is run when the entry is made and at boot, and no more than looked for after that.
func TestDefaultNeedsItsProgram(t *testing.T) {
	const (
		plain     = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
		converged = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\noptions = {BinaryName = \"" + engine.Binary + "\"}\n"
		// What the program says without a runtime below it: internal/oci/runtime_low_level.go of
		// NVIDIA/nvidia-container-toolkit.
		noRunc = "failed to create NVIDIA Container Runtime: error constructing low-level runtime: error locating runtime: no runtime binary found from candidate list: [runc crun]"
	)
	for name, c := range map[string]struct {
		m       machineWith
		config  string
		toolkit bool
		booting bool
		problem string
		asked   int
		later   bool
	}{
		"made, and it runs":               {m: machineWith{mode: 0o755}, config: plain, asked: 1},
		"made, and it is missing":         {config: plain, problem: "is not there, and without it no container starts"},
		"made, and it is not a program":   {m: machineWith{mode: 0o644}, config: plain, problem: "cannot be run"},
		"made, and it is a folder":        {m: machineWith{mode: fs.ModeDir | 0o755}, config: plain, problem: "cannot be run"},
		"made, and there is no runc":      {m: machineWith{mode: 0o755, fails: noRunc}, config: plain, asked: 1, problem: "no runtime binary found"},
		"converged":                       {m: machineWith{mode: 0o755, fails: noRunc}, config: converged},
		"converged, and it is missing":    {config: converged, problem: "is not there"},
		"converged, at boot":              {m: machineWith{mode: 0o755, fails: noRunc}, config: converged, booting: true, asked: 1, problem: "no runtime binary found"},
		"an image":                        {m: machineWith{mode: 0o755, image: true}, config: plain},
		"an image without":                {m: machineWith{image: true}, config: plain, problem: "is not there"},
		"an image, and packages bring it": {m: machineWith{image: true}, config: plain, toolkit: true, later: true},
		"the packages are still to come":  {config: plain, toolkit: true, later: true},
		"the packages have come":          {m: machineWith{mode: 0o755}, config: plain, toolkit: true, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec.Defaults()
			s.Sections = []string{"runtime"}
			if c.toolkit {
				s.Sections = append(s.Sections, "toolkit")
			}
			s.Runtime.SetAsDefault = true
			e := facts.Engine{
				Name:    "containerd",
				Version: "1.7.24",
				Config:  etc + "/config.toml",
				Files:   []facts.File{{Path: etc + "/config.toml", Data: []byte(c.config)}},
			}
			f := facts.Facts{Live: !c.m.image, Booting: c.booting}
			if c.m.mode != 0 {
				f.Programs = []string{engine.Binary}
			}
			read := must.Get(readEngine(e))(t)
			h, wants := asDefault(s, f, read, HandlerFor(s, f, e))
			must.That(t, len(wants) == 1 && h.Default != c.later, "%d wants, default %v", len(wants), h.Default)
			state, err := wants[0].Look(t.Context(), &c.m)
			later := (host.Later{})
			check.That(t, errors.As(err, &later) == c.later && (err == nil || c.later), "later %v: %v", c.later, err)
			problem := string(state)
			check.That(t, (c.problem != "" || problem == "ok" || c.later) && strings.Contains(problem, c.problem), "found %q, want %q", problem, c.problem)
			check.That(t, c.m.asked == c.asked, "run %d times, want %d", c.m.asked, c.asked)
		})
	}
}

// without is a machine on which no program is found.
type without struct{ *simhost.Node }

func (without) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, fs.ErrNotExist
}

// TestProveWithoutADaemon: an engine whose unit runs and whose program is gone cannot be asked, and
// that is what is said.
func TestProveWithoutADaemon(t *testing.T) {
	n, err := simhost.New([]byte("-- etc/containerd/config.toml --\nversion = 2\n"))
	must.OK(t, err)
	const name = "/etc/containerd/config.toml"
	found := []byte("version = 2\n")
	e := facts.Engine{Name: "containerd", Config: name}
	tree := Tree{Root: File{Path: name, Data: found}}
	h := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	err = Validate(t.Context(), without{n}, e, tree, h, name, found, []byte("version = 2\n#\n"))
	tr := (*trouble.Error)(nil)
	if !errors.As(err, &tr) || !strings.Contains(tr.What, "cannot edit "+name+": the engine's program is not found") || len(tr.Try) != 1 || strings.Contains(tr.Try[0], "config dump") {
		t.Errorf("%+v", err)
	}
}

// TestComparedSecret: a password that an edit would change is masked in the error.
func TestComparedSecret(t *testing.T) {
	const dumped = "[plugins.\"" + criV3 + "\".containerd]\ndefault_runtime_name = \"runc\"\n" +
		"[plugins.\"" + criV3 + "\".registry.configs.\"r.example\".auth]\npassword = \"hunter2\"\n"
	was := must.Get(toml.Values([]byte(dumped)))(t)
	is := must.Get(toml.Values([]byte(strings.Replace(dumped, "hunter2", "hunter3", 1))))(t)

	text := fmt.Sprint(compareDumps(was, is, engine.Handler{Name: "nvidia"}))
	check.Has(t, text, `.auth.password from "(masked)" to "(masked)"`, "the error:")
	check.That(t, !strings.Contains(text, "hunter"), "the error has the password: %s", text)
}

// asks counts what its daemon is asked, which answers with the file.
type asks struct {
	*simhost.Node
	times int
}

func (a *asks) AskAbout(_ context.Context, files map[string][]byte, _ ...string) ([]byte, error) {
	a.times++
	return files["/etc/containerd/config.toml"], nil
}

// TestAskedOnce: the plan of a stage at its turn asks nothing that the plan of the run has asked,
// unless the program has changed since.
func TestAskedOnce(t *testing.T) {
	const name, program = "/etc/containerd/config.toml", "/usr/bin/containerd"
	a := &asks{Node: must.Get(simhost.New([]byte("-- usr/bin/containerd --\n1\n")))(t)}
	tree := Tree{Root: File{Path: name, Data: []byte("version = 2\n")}, Texts: new(toml.Texts)}
	for _, want := range []int{2, 2, 4} {
		if want == 4 {
			must.OK(t, a.WriteFile(program, []byte("2\n"), host.Attr{Mode: 0o755}))
		}
		e := facts.Engine{Name: "containerd", Binary: program, Config: name}
		edited := []byte("version = 2\n#\n")
		_ = Validate(t.Context(), a, e, tree, engine.Handler{}, name, tree.Root.Data, edited)
		check.That(t, a.times == want, "asked %d times, want %d", a.times, want)
	}
}
