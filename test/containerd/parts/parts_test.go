package parts

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/must"
)

// fakeTB records how a test ended instead of ending it.
type fakeTB struct {
	testing.TB
	skipped, failed string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Skip(args ...any) { f.skipped, _ = args[0].(string); panic(f) }

func (f *fakeTB) Fatal(args ...any) { f.failed, _ = args[0].(string); panic(f) }

func TestGetMissing(t *testing.T) {
	get := func() (f *fakeTB) {
		f = &fakeTB{}
		defer func() { _ = recover() }()
		Get(f, "2.4")
		return f
	}
	t.Setenv("GPUADM_TEST_PARTS", t.TempDir())
	for _, ci := range []bool{false, true} {
		t.Setenv("CI", map[bool]string{true: "true"}[ci])
		f := get()
		reason := f.skipped
		if ci {
			reason = f.failed
		}
		if !strings.Contains(reason, "cannot find part 2.4") || !strings.Contains(reason, howToGet+" 2.4") {
			t.Errorf("CI=%v: skipped %q, failed %q", ci, f.skipped, f.failed)
		}
	}
}

func TestCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("GPUADM_TEST_PARTS", cache)
	entry := filepath.Join(cache, table()[0].from[1].key("1.6"))
	for name, text := range map[string]string{"containerd": "#!/bin/sh\n", versionFile: "1.6.36\n"} {
		must.OK(t, os.MkdirAll(entry, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(entry, name), []byte(text), 0o755))
	}
	want := Part{
		Name: "1.6", Version: "1.6.36", Origin: "Go module github.com/containerd/containerd@v1.6.36",
		Path: filepath.Join(entry, "containerd"),
	}
	var steps []Step
	must.OK(t, Fetch(t.Context(), func(s Step) { steps = append(steps, s) }, "1.6"))
	if len(steps) != 1 || !steps[0].Cached || steps[0].Part != want {
		t.Errorf("Fetch: %+v", steps)
	}
	if diff := cmp.Diff(Parts{Containerd: []Part{want}}, Get(t, "1.6")); diff != "" {
		t.Error(diff)
	}
	if err := Fetch(t.Context(), nil, "1.5"); err == nil || !strings.Contains(err.Error(), "known are 1.6, 1.7") {
		t.Errorf("Fetch of an unknown part: %v", err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held := must.Get(Lock(path, syscall.LOCK_EX))(t)
	second := make(chan error)
	go func() {
		held, err := Lock(path, syscall.LOCK_EX)
		if err == nil {
			_ = held.Close()
		}
		second <- err
	}()
	select {
	case <-second:
		t.Fatal("the second lock did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	_ = held.Close()
	must.OK(t, <-second)
}

func TestLay(t *testing.T) {
	files := map[string][]byte{
		"config.toml":                []byte("imports = [\"/etc/containerd/conf.d/*.toml\"]\n"),
		"/etc/containerd/conf.d/a.b": []byte("x"),
	}
	root := Lay(t, files)
	text, err := os.ReadFile(filepath.Join(root, "config.toml"))
	if want := "imports = [\"" + root + "/conf.d/*.toml\"]\n"; err != nil || string(text) != want {
		t.Errorf("laid %q, %v", text, err)
	}
	want := map[string][]byte{"config.toml": files["config.toml"], "conf.d/a.b": []byte("x")}
	if diff := cmp.Diff(want, Files(t, root)); diff != "" {
		t.Error(diff)
	}
}

// dump makes a dump with a CRI table.
func dump(plugin string, cri map[string]any, disabled ...any) map[string]any {
	return map[string]any{
		"version": int64(2), "imports": []any{"/etc/containerd/config.toml"}, "disabled_plugins": disabled,
		"plugins": map[string]any{plugin: cri, "other": map[string]any{"a": int64(1)}},
	}
}

// containerd makes the part of a CRI table that has the runtimes.
func containerd(def string, runtimes ...string) map[string]any {
	table := map[string]any{}
	for _, name := range runtimes {
		table[name] = map[string]any{
			"runtime_type": "io.containerd.runc.v2", "runtime_root": "", "sandboxer": "podsandbox",
			"options": map[string]any{"BinaryName": "/b", "SystemdCgroup": false},
		}
	}
	return map[string]any{"default_runtime_name": def, "runtimes": table, "snapshotter": "overlayfs"}
}

func TestEffectOf(t *testing.T) {
	enabled := true
	for _, plugin := range []string{criRuntime, criService} {
		in := dump(plugin, map[string]any{"enable_cdi": true, "containerd": containerd("runc", "runc")})
		want := Effect{
			DefaultRuntime: "runc",
			Runtimes: map[string]map[string]any{"runc": {
				"runtime_type": "io.containerd.runc.v2", "options": map[string]any{"BinaryName": "/b"},
			}},
			EnableCDI: &enabled,
			Imports:   []string{"/etc/containerd/config.toml"},
			Rest: map[string]any{
				"version": int64(2), "disabled_plugins": []any(nil),
				"plugins": map[string]any{
					plugin:  map[string]any{"containerd": map[string]any{"snapshotter": "overlayfs"}},
					"other": map[string]any{"a": int64(1)},
				},
			},
		}
		if diff := cmp.Diff(want, EffectOf(in)); diff != "" {
			t.Errorf("%s: %s", plugin, diff)
		}
		if diff := cmp.Diff(dump(plugin, map[string]any{"enable_cdi": true, "containerd": containerd("runc", "runc")}), in); diff != "" {
			t.Errorf("%s: the dump was changed: %s", plugin, diff)
		}
	}
	if effect := EffectOf(map[string]any{}); effect.EnableCDI != nil || len(effect.Runtimes) != 0 {
		t.Errorf("of nothing: %+v", effect)
	}
}

func TestRefusal(t *testing.T) {
	fallback := containerd("runc", "nvidia")
	fallback["default_runtime"] = map[string]any{"runtime_type": "io.containerd.runc.v2"}
	for name, c := range map[string]struct {
		dump map[string]any
		want string
	}{
		"1.x good":             {dump(criService, map[string]any{"containerd": containerd("runc", "runc")}), ""},
		"2.x good":             {dump(criRuntime, map[string]any{"containerd": containerd("nvidia", "runc", "nvidia")}), ""},
		"default is missing":   {dump(criService, map[string]any{"containerd": containerd("runc", "nvidia")}), `default runtime "runc" is not configured`},
		"default_runtime":      {dump(criService, map[string]any{"containerd": fallback}), ""},
		"no plugin":            {dump("x", nil), "the plugin is not there"},
		"2.x service disabled": {dump(criRuntime, map[string]any{"containerd": containerd("runc", "runc")}, criService), "is disabled"},
		"2.x images disabled":  {dump(criRuntime, map[string]any{"containerd": containerd("runc", "runc")}, criImages), "is disabled"},
		"1.x unknown disabled": {dump(criService, map[string]any{"containerd": containerd("runc", "runc")}, criImages), ""},
	} {
		err := Refusal(c.dump)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const (
	cri2 = `plugins."io.containerd.grpc.v1.cri".containerd`
	runc = "[" + cri2 + ".runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
	nvid = "[" + cri2 + ".runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n" +
		"[" + cri2 + ".runtimes.nvidia.options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\n"
)

// TestDaemons proves the rig on the real daemons.
func TestDaemons(t *testing.T) {
	for _, daemon := range Get(t).Containerd {
		t.Run(daemon.Name, func(t *testing.T) {
			t.Parallel()
			if !strings.HasPrefix(daemon.Version, daemon.Name+".") {
				t.Errorf("version %s", daemon.Version)
			}
			effect := func(text string) Effect {
				t.Helper()
				dump, stderr, err := daemon.Dump(t, Lay(t, map[string][]byte{"config.toml": []byte(text)}))
				if err != nil {
					t.Fatalf("%v: %s", err, stderr)
				}
				return EffectOf(dump)
			}
			// Stated or built in, runc is the same; nvidia adds only itself.
			before := effect("version = 2\n")
			if diff := cmp.Diff(before, effect("version = 2\n"+runc)); diff != "" {
				t.Errorf("runc stated: %s", diff)
			}
			before.Runtimes["nvidia"] = map[string]any{
				"runtime_type": "io.containerd.runc.v2",
				"options":      map[string]any{"BinaryName": "/usr/bin/nvidia-container-runtime"},
			}
			if diff := cmp.Diff(before, effect("version = 2\n"+runc+nvid)); diff != "" {
				t.Errorf("nvidia added: %s", diff)
			}
			_, stderr, err := daemon.Dump(t, Lay(t, map[string][]byte{"config.toml": []byte("version = [\n")}))
			if err == nil || !strings.Contains(stderr, "failed to") {
				t.Errorf("broken file: %v: %s", err, stderr)
			}
		})
	}
}

// TestImports: absolute imports reach the laid tree.
func TestImports(t *testing.T) {
	for _, daemon := range Get(t).Containerd {
		t.Run(daemon.Name, func(t *testing.T) {
			t.Parallel()
			dump, stderr, err := daemon.Dump(t, Lay(t, map[string][]byte{
				"config.toml":   []byte("version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"),
				"conf.d/a.toml": []byte("version = 2\n" + runc + nvid),
			}))
			if err != nil {
				t.Fatalf("%v: %s", err, stderr)
			}
			if effect := EffectOf(dump); effect.Runtimes["nvidia"] == nil {
				t.Errorf("%+v", effect)
			}
		})
	}
}

func TestCTK(t *testing.T) {
	ctk := Get(t, CTK).CTK
	root := Lay(t, map[string][]byte{"config.toml": []byte("version = 2\n" + runc)})
	run := ctk.RunCTK(t, root)
	if run.Exit != 0 {
		t.Fatalf("exit %d: %s", run.Exit, run.Stderr)
	}
	for file, want := range map[string]string{
		"config.toml":           `imports = ["/etc/containerd/conf.d/*.toml"]`,
		"conf.d/99-nvidia.toml": `BinaryName = "/usr/bin/nvidia-container-runtime"`,
	} {
		if !strings.Contains(string(run.Files[file]), want) {
			t.Errorf("%s:\n%s", file, run.Files[file])
		}
	}
	run = ctk.RunCTK(t, Lay(t, map[string][]byte{"config.toml": []byte("version = [\n")}))
	if run.Exit != 1 || !strings.Contains(run.Stderr, "failed to load config") {
		t.Errorf("broken file: exit %d: %s", run.Exit, run.Stderr)
	}
}

// TestBoot checks Refusal, which reads a dump, against daemons that start.
func TestBoot(t *testing.T) {
	for _, daemon := range Get(t).Containerd {
		for name, text := range map[string]string{
			"plain":           "version = 2\n",
			"default missing": "version = 2\n[" + cri2 + "]\ndefault_runtime_name = \"nvidia\"\n",
			"only nvidia":     "version = 2\n" + nvid,
			"disabled":        "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
			"default_runtime": "version = 2\n" + nvid + "[" + cri2 + ".default_runtime]\nruntime_type = \"io.containerd.runc.v2\"\n",
		} {
			t.Run(daemon.Name+" "+name, func(t *testing.T) {
				t.Parallel()
				root := Lay(t, map[string][]byte{"config.toml": []byte(text)})
				refusal := daemon.Verify(t, root)
				booted := daemon.Boot(t, root)
				if !booted.Up || booted.CRI != (refusal == nil) {
					t.Errorf("refusal %v, but up %v, CRI %v\n%s", refusal, booted.Up, booted.CRI, booted.Log)
				}
			})
		}
	}
}
