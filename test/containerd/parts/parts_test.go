package parts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

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
			check.That(t, strings.HasPrefix(daemon.Version, daemon.Name+"."), "version %s", daemon.Version)
			effect := func(text string) Effect {
				t.Helper()
				dump, stderr, err := daemon.Dump(t, Lay(t, map[string][]byte{"config.toml": []byte(text)}))
				must.That(t, err == nil, "%v: %s", err, stderr)
				return EffectOf(dump)
			}
			// Stated or built in, runc is the same; nvidia adds only itself.
			before := effect("version = 2\n")
			check.None(t, cmp.Diff(before, effect("version = 2\n"+runc)), "runc stated:")
			before.Runtimes["nvidia"] = map[string]any{
				"runtime_type": "io.containerd.runc.v2",
				"options":      map[string]any{"BinaryName": "/usr/bin/nvidia-container-runtime"},
			}
			check.None(t, cmp.Diff(before, effect("version = 2\n"+runc+nvid)), "nvidia added:")
			_, stderr, err := daemon.Dump(t, Lay(t, map[string][]byte{"config.toml": []byte("version = [\n")}))
			check.That(t, err != nil && strings.Contains(stderr, "failed to"), "broken file: %v: %s", err, stderr)
		})
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
				check.That(t, booted.Up && booted.CRI == (refusal == nil), "refusal %v, but up %v, CRI %v\n%s", refusal, booted.Up, booted.CRI, booted.Log)
			})
		}
	}
}
