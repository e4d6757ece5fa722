// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestWrapper: where a program of the machine's own starts the engine, its configuration is edited
// only if the spec says which it is.
func TestWrapper(t *testing.T) {
	e := facts.Engine{
		Name: "containerd", Version: "1.7.24", Config: "/etc/containerd/config.toml",
		Unit: "containerd.service", Wrapper: "/opt/start.sh",
	}
	f := facts.Facts{Engines: []facts.Engine{e}}

	_, err := wants(specs.Of(t, "[runtime]\nconfig = \"/etc/containerd/config.toml\"\n"), f)
	must.OK(t, err)

	_, err = wants(specs.Of(t, "[runtime]\n"), f)
	must.That(t, err != nil, "it is not refused")
	check.Equal(t, err.Error(), "cannot tell which configuration containerd reads: containerd.service starts it with /opt/start.sh", "the refusal")
}

// TestOtherEngine: doctor reads an engine that gpuadm does not configure, and the stage refuses it.
func TestOtherEngine(t *testing.T) {
	e := facts.Engine{
		Name:   "rktlet",
		Binary: "/usr/bin/rktlet",
		Unit:   "rktlet.service",
	}
	check.That(t, ReadConfigured(e).Unreadable == nil && Loads(e) != nil, "it is not read")
	s := specs.Of(t, "[runtime]\n")
	_, err := wants(s, facts.Facts{Engines: []facts.Engine{e}})
	check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot configure rktlet: "), "%v", err)
}

// TestStated: a file that nothing is known to read is not edited, and a file that a unit's engine
// reads is, whichever kubelet uses.
func TestStated(t *testing.T) {
	s := specs.Of(t, "[runtime]\nconfig = \"/srv/c.toml\"\n")
	named := facts.Engine{
		Name: "containerd", Version: "1.7.24", Config: "/srv/c.toml",
		Unit: "x.service", Socket: "/run/x.sock",
	}
	kubelets := facts.Engine{
		Name: "containerd", Config: "/etc/containerd/config.toml", Unit: "containerd.service",
	}
	kubelet := facts.Kubelet{Endpoint: "unix:///run/containerd/containerd.sock"}

	list, err := wants(s, facts.Facts{
		Engines: []facts.Engine{named, kubelets},
		Kubelet: kubelet,
	})
	must.OK(t, err)
	last := list[len(list)-1].Ref()
	check.Equal(t, last.Name, "x.service", "the last want")

	_, err = wants(s, facts.Facts{Engines: []facts.Engine{kubelets}})
	must.That(t, err != nil, "it is not refused")
	check.Equal(t, err.Error(), "cannot edit /srv/c.toml: no process and no unit is known to read it", "the refusal")
}

// TestSeveralEngines: the plan says which of several engines it is, and why; where a kubelet is
// there and does not say, none is edited.
func TestSeveralEngines(t *testing.T) {
	s := specs.Of(t, "[runtime]\n")
	containerd := containerdWithoutProgram()
	containerd.Version = "2.1.5"
	containerd.Binary = "/usr/bin/containerd"
	engines := []facts.Engine{containerd, crioEngine()}

	const unit = "kubelet.service"
	const unsaid = "no kubelet says which engine it uses: containerd.service is changed, and crio.service is left as it is; engine in [runtime] names another"
	for _, c := range []struct {
		kubelet facts.Kubelet
		says    string
	}{
		{facts.Kubelet{}, unsaid},
		{facts.Kubelet{Unit: unit, Args: []string{}}, unsaid},
		{
			facts.Kubelet{Unit: unit},
			"cannot tell which container engine kubelet uses: kubelet.service starts kubelet through a wrapper, and containerd.service and crio.service are installed",
		},
		{
			facts.Kubelet{Unit: unit, Endpoint: "unix:///run/crio/crio.sock"},
			"kubelet talks to unix:///run/crio/crio.sock, the socket of crio.service: containerd.service is left as it is",
		},
	} {
		f := facts.Facts{Engines: engines, Kubelet: c.kubelet}
		e, err := chosen(s.Runtime, f)
		says := strings.Join(whyChosen(s.Runtime, f, e), "")
		if err != nil {
			says = err.Error()
		}
		check.Equal(t, says, c.says, "says")
	}

	f := facts.Facts{Engines: engines[:1]}
	check.That(t, whyChosen(s.Runtime, f, engines[0]) == nil, "one engine is explained")
}

// containerdWithoutProgram is containerd's unit, whose program is not there.
func containerdWithoutProgram() facts.Engine {
	return facts.Engine{
		Name: "containerd", Unit: "containerd.service",
		Config: "/etc/containerd/config.toml",
		Socket: "/run/containerd/containerd.sock",
	}
}

func crioEngine() facts.Engine {
	return facts.Engine{
		Name: "crio", Version: "1.34.0",
		Binary: "/usr/bin/crio", Unit: "crio.service",
		Config: "/etc/crio/crio.conf",
		Files:  []facts.File{{Path: "/etc/crio/crio.conf"}},
		Folder: "/etc/crio/crio.conf.d",
		Socket: "/run/crio/crio.sock",
	}
}

// TestEngineWithoutProgram: a unit whose program is not there is no engine, whichever is named, and
// the plan says so.
func TestEngineWithoutProgram(t *testing.T) {
	gone := containerdWithoutProgram()
	crio := crioEngine()
	both := []facts.Engine{gone, crio}
	const why = "the program of containerd.service is not there"
	const unserved = "cannot configure a container engine: kubelet talks to /run/containerd/containerd.sock, and none of the engines found listens there"
	for _, c := range []struct {
		spec    string
		kubelet string // its endpoint
		engines []facts.Engine
		err     string
		why     string
	}{
		{engines: both, why: "gpuadm configures crio.service: " + why},
		{kubelet: "unix://" + crio.Socket, engines: both},
		{kubelet: crio.Socket, engines: []facts.Engine{crio}},
		{kubelet: gone.Socket, engines: both, err: unserved, why: why},
		{engines: []facts.Engine{gone}, err: "cannot configure a container engine: none is installed", why: why},
		{
			spec: "engine = \"containerd\"\n", engines: both,
			err: "cannot configure containerd: it is not installed",
			why: "installed: crio; " + why,
		},
		{
			spec: "config = \"/etc/containerd/config.toml\"\n", engines: both,
			err: "cannot edit /etc/containerd/config.toml: no process and no unit is known to read it",
		},
	} {
		s := specs.Of(t, "[runtime]\n"+c.spec)
		f := facts.Facts{Engines: c.engines, Kubelet: facts.Kubelet{Endpoint: c.kubelet}}
		e, err := chosen(s.Runtime, f)
		says := whyChosen(s.Runtime, f, e)
		if tr := (*trouble.Error)(nil); errors.As(err, &tr) {
			check.Equal(t, tr.What, c.err, "error")
			says = tr.Because
		} else {
			check.That(t, c.err == "" && e.Name == "crio", "%+v: %s, %v", c, e.Name, err)
		}

		check.Equal(t, strings.Join(says, "; "), c.why, "%q", c.spec+c.kubelet)
	}
}

// TestNotInstalled: an engine that the spec names is the one to install.
func TestNotInstalled(t *testing.T) {
	s := specs.Of(t, "[runtime]\nengine = \"crio\"\n")
	for _, x := range []struct {
		engines []facts.Engine
		try     string
	}{
		{nil, "install crio first"},
		{
			[]facts.Engine{{Name: "containerd", Binary: "/usr/bin/containerd"}},
			"write engine = \"containerd\" in [runtime], or install crio first",
		},
	} {
		_, err := chosen(s.Runtime, facts.Facts{Engines: x.engines})
		var refused *trouble.Error
		must.That(t, errors.As(err, &refused), "%v", err)
		check.Equal(t, strings.Join(refused.Try, "; "), x.try, "try:")
	}
}

// TestUnknownEndpoint: the sockets that kubelet could talk to are those that answer CRI.
func TestUnknownEndpoint(t *testing.T) {
	docker := facts.Engine{Name: "docker", Binary: "/usr/bin/dockerd", Socket: "/run/docker.sock"}
	shimmed := docker
	shimmed.CRI = "/run/cri-dockerd.sock"
	const (
		point = "point kubelet's containerRuntimeEndpoint at one of these: unix:///run/crio/crio.sock of crio"
		named = "; if its pods do not matter here, write engine = %q into [runtime]"
	)
	for _, x := range []struct {
		engines []facts.Engine
		try     string
	}{
		{[]facts.Engine{crioEngine(), docker}, point + fmt.Sprintf(named, "crio")},
		{[]facts.Engine{crioEngine(), shimmed}, point + ", unix:///run/cri-dockerd.sock of docker" + fmt.Sprintf(named, "crio")},
		{[]facts.Engine{docker}, fmt.Sprintf(named, "docker")[2:]},
	} {
		f := facts.Facts{
			Engines: x.engines,
			Kubelet: facts.Kubelet{Endpoint: "unix:///srv/other.sock"},
		}
		_, err := chosen(specs.Of(t, "[runtime]\n").Runtime, f)
		var refused *trouble.Error
		must.That(t, errors.As(err, &refused), "%v", err)
		check.Equal(t, strings.Join(refused.Try, "; "), x.try, "try:")
	}
}

// TestForgottenRuntime: the drop-in of nvidia-ctk makes CRI-O before 1.26 forget runc, and the plan
// says so, also where it changes nothing of that. Seen with "crio config" of 1.24.6 and 1.36.3.
func TestForgottenRuntime(t *testing.T) {
	const at = "/etc/crio/crio.conf.d/99-nvidia.conf"
	const text = `[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
`
	s := specs.Of(t, "[runtime]\n[toolkit]\n")
	for version, want := range map[string]string{
		"1.24.6": "CRI-O 1.24.6 forgets the runtime runc, as " + at + " has another default",
		"1.36.3": "",
	} {
		e := crioEngine()
		e.Version = version
		e.Files = []facts.File{{Path: at, Data: []byte(text)}}

		told := notes(nil, s, facts.Facts{Engines: []facts.Engine{e}})

		check.Equal(t, strings.Join(told, "\n"), want, "%s:", version)
	}
}

// TestMissingProgram: a note about the handler's program says what installs that program, and
// [toolkit] installs one alone.
func TestMissingProgram(t *testing.T) {
	e := facts.Engine{
		Name:   "containerd",
		Config: "/etc/containerd/config.toml",
		Unit:   "containerd.service",
		Files:  []facts.File{{Path: "/etc/containerd/config.toml", Data: []byte("version = 2\n")}},
	}
	n := must.Get(simhost.New([]byte("-- etc/os-release --\n")))(t)
	const (
		extensions = "nvidia-container-runtime.cdi is not installed: containers of the handler nvidia-cdi do not start until it is; " +
			"the package nvidia-container-toolkit-operator-extensions has it"
		stated = "/opt/nvidia-container-runtime is not installed: containers of the handler nvidia do not start until it is"
	)
	for _, x := range []struct{ text, note string }{
		{"", "nvidia-container-runtime is not installed: containers of the handler nvidia do not start until it is; [toolkit] in node.toml installs it"},
		{"[toolkit]\n", ""},
		{"handler = \"nvidia-cdi\"\n", extensions},
		{"handler = \"nvidia-cdi\"\n[toolkit]\n", extensions},
		{"program = \"/opt/nvidia-container-runtime\"\n", stated},
		{"program = \"/opt/nvidia-container-runtime\"\n[toolkit]\n", stated},
	} {
		s := specs.Of(t, "[runtime]\n"+x.text)
		noted := missingToolkit(n, s, facts.Facts{Engines: []facts.Engine{e}}, e)
		check.Equal(t, strings.Join(noted, "; "), x.note, "%q:", x.text)
	}
}
