// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestWrapper: where a program of the machine's own starts the engine, its configuration is edited
// only if the spec says which it is.
func TestWrapper(t *testing.T) {
	e := facts.Engine{Name: "containerd", Version: "1.7.24", Unit: "containerd.service", Wrapper: "/opt/start.sh", Config: "/etc/containerd/config.toml"}
	for text, refused := range map[string]bool{"": true, "config = \"/etc/containerd/config.toml\"\n": false} {
		_, err := wants(must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\n" + text)}))(t), facts.Facts{Engines: []facts.Engine{e}})
		check.That(t, (err != nil) == refused && (!refused || err.Error() == "cannot tell which configuration containerd reads: containerd.service starts it with /opt/start.sh"),
			"%q: %v", text, err)
	}
}

// TestOtherEngine: doctor reads an engine that gpuadm does not configure, and the stage refuses it.
func TestOtherEngine(t *testing.T) {
	e := facts.Engine{Name: "rktlet", Binary: "/usr/bin/rktlet", Unit: "rktlet.service"}
	check.That(t, ReadConfigured(e).Unreadable == nil && Loads(e) != nil, "it is not read")
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\n")}))(t)
	_, err := wants(s, facts.Facts{Engines: []facts.Engine{e}})
	check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot configure rktlet: "), "%v", err)
}

// TestStated: a file that nothing is known to read is not edited, and a file that a unit's engine
// reads is, whichever kubelet uses.
func TestStated(t *testing.T) {
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\nconfig = \"/srv/c.toml\"\n")}))(t)
	engines := []facts.Engine{{Name: "containerd", Version: "1.7.24", Unit: "x.service", Config: "/srv/c.toml", Socket: "/run/x.sock"}, {Name: "containerd", Config: "/etc/containerd/config.toml", Unit: "containerd.service"}}
	list, err := wants(s, facts.Facts{Engines: engines, Kubelet: facts.Kubelet{Endpoint: "unix:///run/containerd/containerd.sock"}})
	must.That(t, err == nil && list[len(list)-1].Ref().Name == "x.service", "%v: %v", list, err)
	_, err = wants(s, facts.Facts{Engines: engines[1:]})
	must.That(t, err != nil && err.Error() == "cannot edit /srv/c.toml: no process and no unit is known to read it", "%v", err)
}

// TestSeveralEngines: the plan says which of several engines it is, and why; where a kubelet is
// there and does not say, none is edited.
func TestSeveralEngines(t *testing.T) {
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\n")}))(t)
	engines := []facts.Engine{
		{Name: "containerd", Version: "2.1.5", Binary: "/usr/bin/containerd", Unit: "containerd.service", Config: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock"},
		{Name: "crio", Version: "1.34.0", Binary: "/usr/bin/crio", Unit: "crio.service", Config: "/etc/crio/crio.conf", Files: []facts.File{{Path: "/etc/crio/crio.conf"}}, Folder: "/etc/crio/crio.conf.d", Socket: "/run/crio/crio.sock"},
	}
	for _, c := range []struct {
		kubelet facts.Kubelet
		says    string
	}{
		{facts.Kubelet{Unit: "kubelet.service", Endpoint: "unix:///run/crio/crio.sock"}, "kubelet talks to unix:///run/crio/crio.sock, the socket of crio.service: containerd.service is left as it is"},
		{facts.Kubelet{}, "no kubelet says which engine it uses: containerd.service is changed, and crio.service is left as it is; engine in [runtime] names another"},
		{facts.Kubelet{Unit: "kubelet.service"}, "cannot tell which container engine kubelet uses: kubelet.service starts it by another program, and containerd.service and crio.service are here"},
		{facts.Kubelet{Unit: "kubelet.service", Args: []string{}}, "no kubelet says which engine it uses: containerd.service is changed, and crio.service is left as it is; engine in [runtime] names another"},
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

// TestEngineWithoutProgram: a unit whose program is not there is no engine, whichever is named, and
// the plan says so.
func TestEngineWithoutProgram(t *testing.T) {
	gone := facts.Engine{Name: "containerd", Unit: "containerd.service", Config: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock"}
	crio := facts.Engine{Name: "crio", Version: "1.34.0", Binary: "/usr/bin/crio", Unit: "crio.service", Config: "/etc/crio/crio.conf", Files: []facts.File{{Path: "/etc/crio/crio.conf"}}, Folder: "/etc/crio/crio.conf.d", Socket: "/run/crio/crio.sock"}
	const why = "the program of containerd.service is not there"
	for _, c := range []struct {
		spec     string
		kubelet  string
		engines  []facts.Engine
		err, why string
	}{
		{"", "", []facts.Engine{gone, crio}, "", "gpuadm configures crio.service: " + why},
		{"", "unix:///run/crio/crio.sock", []facts.Engine{gone, crio}, "", ""},
		{"", crio.Socket, []facts.Engine{crio}, "", ""},
		{"", gone.Socket, []facts.Engine{gone, crio}, "cannot configure a container engine: kubelet talks to /run/containerd/containerd.sock, and none of the engines found listens there", why},
		{"", "", []facts.Engine{gone}, "cannot configure a container engine: none is installed", why},
		{"engine = \"containerd\"\n", "", []facts.Engine{gone, crio}, "cannot configure containerd: it is not installed", "installed: crio; " + why},
		{"config = \"/etc/containerd/config.toml\"\n", "", []facts.Engine{gone, crio}, "cannot edit /etc/containerd/config.toml: no process and no unit is known to read it", ""},
	} {
		s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\n" + c.spec)}))(t)
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

// TestForgottenRuntime: the drop-in of nvidia-ctk makes CRI-O before 1.26 forget runc, and the plan
// says so, also where it changes nothing of that. Seen with "crio config" of 1.24.6 and 1.36.3.
func TestForgottenRuntime(t *testing.T) {
	const at = "/etc/crio/crio.conf.d/99-nvidia.conf"
	text := "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n"
	for version, want := range map[string]string{"1.24.6": "CRI-O 1.24.6 forgets the runtime runc, as " + at + " has another default", "1.36.3": ""} {
		e := facts.Engine{Name: "crio", Version: version, Binary: "/usr/bin/crio", Folder: "/etc/crio/crio.conf.d", Config: "/etc/crio/crio.conf", Files: []facts.File{{Path: at, Data: []byte(text)}}}
		s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[runtime]\n[toolkit]\n")}))(t)
		check.Equal(t, strings.Join(notes(nil, s, facts.Facts{Engines: []facts.Engine{e}}), "\n"), want, "%s:", version)
	}
}
