// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	_ "embed"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// toolkitDefault is what nvidia-ctk 1.20.1's "config" writes, on a machine without a driver.
//
//go:embed testdata/default.toml
var toolkitDefault string

func TestEditToolkit(t *testing.T) {
	closed := spec.Toolkit{}
	crio := spec.Toolkit{
		AcceptEnvvarUnprivileged: true,
		Runtimes:                 []string{"/usr/libexec/crio/crun", "/usr/bin/runc"},
	}
	const top = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\naccept-nvidia-visible-devices-as-volume-mounts = true\n"
	for _, x := range []struct {
		name  string
		t     spec.Toolkit
		found string
		want  string
	}{
		{"the package's", closed, toolkitDefault, strings.Replace(toolkitDefault, "#swarm", top+"#swarm", 1)},
		{"an owner's mode stays", closed, "[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = \"cdi\" # mine\n", top + "\n[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = \"cdi\" # mine\n"},
		{"said otherwise", closed, "accept-nvidia-visible-devices-envvar-when-unprivileged = true # open\n", "accept-nvidia-visible-devices-envvar-when-unprivileged = false # open\naccept-nvidia-visible-devices-as-volume-mounts = true\n"},
		{"as wanted, in another form", closed, "  'accept-nvidia-visible-devices-envvar-when-unprivileged'=false\naccept-nvidia-visible-devices-as-volume-mounts=true", "  'accept-nvidia-visible-devices-envvar-when-unprivileged'=false\naccept-nvidia-visible-devices-as-volume-mounts=true"},
		{"no file", closed, "", top},
		{"CRI-O", crio, toolkitDefault, strings.Replace(toolkitDefault, `["runc", "crun"]`, `["/usr/libexec/crio/crun", "/usr/bin/runc"]`, 1)},
		{"CRI-O, no file", crio, "", "[nvidia-container-runtime]\n  runtimes = [\"/usr/libexec/crio/crun\", \"/usr/bin/runc\"]\n"},
	} {
		out, err := editConfig([]byte(x.found), keysOf(x.t))
		if err != nil || string(out) != x.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", x.name, err, out, x.want)
			continue
		}
		if twice, err := editConfig(out, keysOf(x.t)); err != nil || string(twice) != string(out) {
			t.Errorf("%s: a second time: %v\n%s", x.name, err, twice)
		}
		theirs := string(out) + "\n[features]\nx = true\n"
		rest, left, err := engine.TakeOut([]byte(x.found), out, []byte(theirs))
		if err != nil || len(left) > 0 || strings.TrimSpace(string(rest)) != strings.TrimSpace(x.found+"\n[features]\nx = true") && x.want != x.found {
			t.Errorf("%s: taken out: %v %v\n%s", x.name, left, err, rest)
		}
	}

	for _, broken := range []string{"a = ", "nvidia-container-runtime = 3\n"} {
		_, err := editConfig([]byte(broken), keysOf(crio))
		trouble := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &trouble) && strings.Contains(trouble.What, "cannot edit "+Config) && len(trouble.Try) > 0, "%q: %v", broken, err)
	}
}

// Only what [toolkit] says is wanted.
// TestUndoBesideAComment: undo leaves an operator's comment above gpuadm's keys, and nothing of
// gpuadm's beside it: not even an empty line.
func TestUndoBesideAComment(t *testing.T) {
	const before = "[nvidia-container-cli]\n#debug = \"x\"\n\n[nvidia-container-runtime]\nmode = \"auto\"\n"
	after := must.Get(editConfig([]byte(before), keysOf(spec.Toolkit{})))(t)

	for _, at := range []string{acceptEnvvar, acceptMounts, "[nvidia-container-cli]"} {
		found := strings.Replace(string(after), at, "# by an operator\n"+at, 1)
		rest, left, err := engine.TakeOut([]byte(before), after, []byte(found))
		must.That(t, err == nil && len(left) == 0, "above %s: %v, left %q", at, err, left)
		check.Equal(t, string(rest), "# by an operator\n"+before, "above %s:", at)
	}
}

func TestConfigWants(t *testing.T) {
	for text, wants := range map[string]int{
		"":                                0,
		"[runtime]\n":                     0,
		"[toolkit]\n":                     0,
		"[toolkit]\nversion = \"1.18\"\n": 0,
		"[toolkit]\nruntimes = [\"/usr/bin/runc\"]\n":     1,
		"[toolkit]\naccept_envvar_unprivileged = false\n": 1,
	} {
		s := specs.Of(t, text)
		files := 0
		for _, w := range configWants(s) {
			if w.Ref().Kind == "file" && w.Ref().Name == Config {
				files++
			}
		}

		check.That(t, files == wants, "%q wants the file %d times, not %d", text, files, wants)
		notes := configNotes(s)
		check.That(t, (len(notes) > 0) == strings.Contains(text, "accept"), "%q: %q", text, notes)
	}
}

// TestFaults: what the real runtime, 1.20.1, refuses to start a container with. The words of says
// are its own.
func TestFaults(t *testing.T) {
	const spec = "-- etc/cdi/n.yaml --\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- {name: all, containerEdits: {env: [A=b]}}\n"
	const cli = "-- usr/bin/nvidia-container-cli mode=0755 --\n-- usr/bin/nvidia-container-runtime-hook mode=0755 --\n"
	for _, x := range []struct{ set, more, fault, says string }{
		{"", "", "", ""},
		{`mode = "auto"`, "", "", ""},
		{`mode = "jit-cdi"`, "", "", ""},
		{`mode = "bogus"`, "", "is none of", `invalid mode "bogus"`},
		{`mode = "CDI"`, "", "is none of", `invalid mode "CDI"`},
		{`mode = 3`, "", "line 2: toml: cannot decode", "Can't convert 3(int64) to string"},
		{`mode = ""`, "", "is none of", "a mode must be specified"},
		{`log-level = 5`, "", "line 2: toml: cannot", "Can't convert 5(int64) to string"},
		{`log-level = "loud"`, "", "", ""},
		{`runtimes = "runc"`, "", "line 2: toml: cann", "Can't convert runc(string) to []string(slice)"},
		{"mode = \"cdi\"\nmodes.cdi.spec-dirs = [\"/srv\"]", spec, "needs a CDI spec", "unresolvable CDI devices nvidia.com/gpu=all"},
		{"mode = \"cdi\"\nmodes.cdi.spec-dirs = [\"/srv\"]", strings.Replace(spec, "etc/cdi", "srv", 1), "", ""},
		{`mode = "cdi"`, "", "needs a CDI spec", "unresolvable CDI devices nvidia.com/gpu=all"},
		{`mode = "cdi"`, spec, "", ""},
		{`mode = "legacy"`, "", "which is not there", ""},
		{`mode = "legacy"`, cli, "", ""},
		{`runtimes = ["crun"]`, "", "none of runtimes", "no runtime binary found from candidate list"},
		{`runtimes = []`, "", "none of runtimes", "at least one runtime candidate must be specified"},
		{`runtimes = ["crun", "runc"]`, "", "", ""},
		{"mode = ", "", "toml", "expecting a value"},
	} {
		n := must.Get(simhost.New([]byte("-- usr/sbin/runc mode=0755 --\n-- etc/nvidia-container-runtime/config.toml --\n[nvidia-container-runtime]\n" + x.set + "\n" + x.more)))(t)
		got := strings.Join(Faults(n, facts.Facts{Programs: []string{engine.Binary}}), "\n")
		check.That(t, (x.fault == "") == (got == "") && strings.Contains(got, x.fault), "%q: %q, want %q, as the runtime says %q", x.set, got, x.fault, x.says)
	}
}
