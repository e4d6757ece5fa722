// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestNRI: for inject = "cdi" without a device plugin or a DRA driver that is to be seen, the plan
// says why the GPU Operator's NRI plugin cannot work, by what the engine listens at.
func TestNRI(t *testing.T) {
	const (
		listens = "-- proc/net/unix --\nNum       RefCount Protocol Flags    Type St Inode Path\n0000000000000000: 00000002 00000000 00010000 0001 01 2211 SOCKET\n"
		plugin  = "-- var/run/cdi/p.json --\n{\"cdiVersion\": \"0.5.0\", \"kind\": \"k8s.device-plugin.nvidia.com/gpu\", \"devices\": [{\"name\": \"a\", \"containerEdits\": {\"env\": [\"A=b\"]}}]}\n"
		table   = "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n"
	)
	nri := strings.Replace(listens, "SOCKET", "/run/nri/nri.sock", 1)
	containerd := func(version, text string) facts.Engine {
		return facts.Engine{
			Name: "containerd", Version: version, Binary: "/usr/bin/containerd", Config: "/etc/c.toml", Unit: "containerd.service",
			Files: []facts.File{{Path: "/etc/c.toml", Data: []byte(text)}},
		}
	}

	crio := func(version, text string) facts.Engine {
		return facts.Engine{
			Name: "crio", Version: version, Binary: "/usr/bin/crio", Config: "/etc/crio/crio.conf", Folder: "/etc/crio/crio.conf.d", Unit: "crio.service",
			Files: []facts.File{{Path: "/etc/crio/crio.conf", Data: []byte(text)}},
		}
	}

	for _, x := range []struct {
		name    string
		engine  facts.Engine
		archive string
		inject  string
		says    string
	}{
		{"1.6", containerd("1.6.20", "version = 2\n"), "", "cdi", "containerd 1.6.20 has no NRI for it: 1.7 is the first"},
		{"1.7, off by default", containerd("1.7.24", "version = 2\n"), "", "cdi", "write disable = false into [plugins.\"io.containerd.nri.v1.nri\"] of /etc/c.toml, and restart containerd.service"},
		{"1.7, on", containerd("1.7.24", table+"disable = false\n"), nri, "cdi", ""},
		{"1.7, on in the file alone", containerd("1.7.24", table+"disable = false\n"), "", "cdi", "containerd does not listen at /var/run/nri/nri.sock, though its files have NRI on: restart containerd.service"},
		{"2.1, on by default", containerd("2.1.9", "version = 3\n"), nri, "cdi", ""},
		{"2.1, off", containerd("2.1.9", table+"disable = true\n"), "", "cdi", "NRI is off in containerd 2.1.9"},
		{"2.1, another socket", containerd("2.1.9", table+"socket_path = \"/run/x.sock\"\n"), strings.Replace(listens, "SOCKET", "/run/x.sock", 1), "cdi", ""},
		{"2.1, no connections", containerd("2.1.9", table+"disable_connections = true\n"), "", "cdi", "take disable_connections out"},
		{"a device plugin gives GPUs", containerd("1.7.24", "version = 2\n"), plugin, "cdi", ""},
		{"a handler gives GPUs", containerd("1.7.24", "version = 2\n"), "", "handler", ""},
		{"CRI-O 1.25", crio("1.25.0", ""), "", "cdi", "CRI-O 1.25.0 has no NRI: 1.26 is the first"},
		{"CRI-O 1.29, off by default", crio("1.29.0", ""), "", "cdi", "write enable_nri = true into [crio.nri] of a file in /etc/crio/crio.conf.d, and restart crio.service"},
		{"CRI-O 1.36, on by default", crio("1.36.3", ""), nri, "cdi", ""},
		{"CRI-O 1.36, off", crio("1.36.3", "[crio.nri]\nenable_nri = false\n"), "", "cdi", "NRI is off in CRI-O 1.36.3"},
	} {
		n := must.Get(simhost.New([]byte("-- etc/os-release --\n" + x.archive)))(t)
		text := "format = 1\n[runtime]\ninject = \"" + x.inject + "\"\n"
		s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}))(t)
		said := strings.Join(nriNote(n, s, facts.Facts{}, x.engine), "\n")
		check.That(t, strings.Contains(said, x.says) && (x.says == "") == (said == ""), "%s: %q, want %q", x.name, said, x.says)
	}
}

// TestReadingSpecs: Docker looks for CDI specs beside the engine of pods, where it has CDI and it is
// on.
func TestReadingSpecs(t *testing.T) {
	for _, x := range []struct {
		version, text string
		reads         bool
	}{
		{"24.0.7", `{"features": {"cdi": true}}`, false},
		{"26.1.5", "", false},
		{"26.1.5", `{"features": {"cdi": true}}`, true},
		{"28.5.2", "", true},
		{"28.5.2", `{"features": {"cdi": false}}`, false},
	} {
		e := facts.Engine{
			Name: "docker", Version: x.version, Binary: "/usr/bin/dockerd", Config: "/etc/docker/daemon.json",
			Files: []facts.File{{Path: "/etc/docker/daemon.json", Data: []byte(x.text)}},
		}
		reads := len(ReadingSpecs(facts.Facts{Engines: []facts.Engine{e}})) == 1
		check.That(t, reads == x.reads, "Docker %s, %s: reads CDI specs: %v", x.version, x.text, reads)
	}
}
