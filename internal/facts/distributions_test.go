// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestWhoRunsTheEngine has each distribution's own layout: units and argument files as its
// packaging and installer write them (the sources are beside the code), and beside it an idle
// containerd of the machine's, which the kubelet does not use.
func TestWhoRunsTheEngine(t *testing.T) {
	const own, machine = "/etc/containerd/config.toml", "/run/containerd/containerd.sock"
	k3s := func(args string) files {
		return files{"/etc/systemd/system/k3s.service": service1("/usr/local/bin/k3s server" + args)}
	}
	and := func(v files, more files) files {
		maps.Copy(v, more)
		return v
	}

	const moved = "/data/k3s/agent/etc/containerd/config.toml"
	for _, c := range []struct {
		name                         string
		files                        files
		engine, config, socket, unit string // the engine that kubelet uses
		owner, kubelet               string
	}{
		{"K3s, data-dir in the unit's environment file", and(files{"/etc/systemd/system/k3s.service": "[Service]\nEnvironmentFile=-/etc/systemd/system/k3s.service.env\nExecStart=/usr/local/bin/k3s server\n"}, files{"/etc/systemd/system/k3s.service.env": "K3S_DATA_DIR=/data/k3s\n"}), "containerd", moved, "/run/k3s/containerd/containerd.sock", "k3s.service", "k3s", "k3s.service"},
		{"K3s, data-dir in config.yaml.d", and(k3s(""), files{"/etc/rancher/k3s/config.yaml.d/10.yaml": "data-dir: /data/k3s\n"}), "containerd", moved, "/run/k3s/containerd/containerd.sock", "k3s.service", "k3s", "k3s.service"},
		{"K3s, -d", k3s(" -d /data/k3s"), "containerd", moved, "/run/k3s/containerd/containerd.sock", "k3s.service", "k3s", "k3s.service"},
		{"K3s, K3S_CONFIG_FILE", and(files{"/etc/systemd/system/k3s.service": "[Service]\nEnvironment=K3S_CONFIG_FILE=/c.yaml\nExecStart=/usr/local/bin/k3s server --config /other.yaml\n"}, files{"/c.yaml": "data-dir: /data/k3s\n"}), "containerd", moved, "/run/k3s/containerd/containerd.sock", "k3s.service", "k3s", "k3s.service"},
		{"K3s, endpoint in config.yaml.d", and(k3s(""), files{"/etc/rancher/k3s/config.yaml.d/10.yaml": "container-runtime-endpoint: unix://" + machine + "\n"}), "containerd", own, machine, "", "", "k3s.service"},
		{"K3s, docker: true", and(k3s(""), files{"/etc/rancher/k3s/config.yaml": "docker: true\n", "/usr/bin/dockerd": "x"}), "docker", "/etc/docker/daemon.json", "/run/docker.sock", "", "", "k3s.service"},
		{"K3s by another name", and(files{"/etc/systemd/system/k3s-gpu.service": service1("/usr/local/bin/k3s agent --data-dir=/data/k3s")}, nil), "containerd", moved, "/run/k3s/containerd/containerd.sock", "k3s-gpu.service", "k3s", "k3s-gpu.service"},
		{"K3s' name, another program", files{"/etc/systemd/system/k3s-backup.service": service1("/usr/bin/restic backup")}, "", "", "", "", "", ""},
		{"RKE2, data-dir", files{"/usr/lib/systemd/system/rke2-agent.service": "[Service]\nEnvironmentFile=-/etc/default/%N\nExecStart=/usr/local/bin/rke2 agent\n", "/etc/default/rke2-agent": "RKE2_DATA_DIR=/data/rke2\n"}, "containerd", "/data/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock", "rke2-agent.service", "rke2", "rke2-agent.service"},
		{"k0s", files{"/etc/systemd/system/k0sworker.service": service1("/usr/local/bin/k0s worker --token-file=/etc/k0s/token"), "/etc/k0s/containerd.toml": "# k0s_managed=true\nversion = 3\n"}, "containerd", "/etc/k0s/containerd.toml", "/run/k0s/containerd.sock", "k0sworker.service", "k0s", "k0sworker.service"},
		{"k0s, a config of the administrator's", files{"/etc/systemd/system/k0sworker.service": service1("/usr/local/bin/k0s worker"), "/etc/k0s/containerd.toml": "version = 3\n"}, "containerd", "/etc/k0s/containerd.toml", "/run/k0s/containerd.sock", "k0sworker.service", "", "k0sworker.service"},
		{"k0s, another engine", files{"/etc/systemd/system/k0sworker.service": service1("/usr/local/bin/k0s worker --cri-socket=remote:unix://" + machine)}, "containerd", own, machine, "", "", "k0sworker.service"},
		{"k0s, no worker", files{"/etc/systemd/system/k0scontroller.service": service1("/usr/local/bin/k0s controller")}, "", "", "", "", "", ""},
		{"MicroK8s", files{
			"/etc/systemd/system/snap.microk8s.daemon-containerd.service": service1("/usr/bin/snap run microk8s.daemon-containerd"), "/etc/systemd/system/snap.microk8s.daemon-kubelite.service": service1("/usr/bin/snap run microk8s.daemon-kubelite"),
			"/var/snap/microk8s/current/args/containerd":               "--config ${SNAP_DATA}/args/containerd.toml\n--root ${SNAP_COMMON}/var/lib/containerd\n--state ${SNAP_COMMON}/run/containerd\n--address ${SNAP_COMMON}/run/containerd.sock\n",
			"/var/snap/microk8s/current/args/containerd-template.toml": "version = 2\n",
			"/var/snap/microk8s/current/args/kubelet":                  "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n--node-labels=\"microk8s.io/cluster=true\"\n",
		}, "containerd", "/var/snap/microk8s/current/args/containerd-template.toml", "/var/snap/microk8s/common/run/containerd.sock", "snap.microk8s.daemon-containerd.service", "", "snap.microk8s.daemon-kubelite.service"},
		{"Canonical Kubernetes beside Docker's containerd", files{
			"/etc/systemd/system/snap.k8s.containerd.service": service1("/usr/bin/snap run k8s.containerd"), "/etc/systemd/system/snap.k8s.kubelet.service": service1("/usr/bin/snap run k8s.kubelet"),
			"/var/snap/k8s/common/args/containerd": "--address=/srv/k8s/run/containerd/containerd.sock\n--config=/srv/k8s/etc/containerd/config.toml\n",
			"/var/snap/k8s/common/args/kubelet":    "--container-runtime-endpoint=/srv/k8s/run/containerd/containerd.sock\n--root-dir=/var/lib/kubelet\n",
			"/srv/k8s/etc/containerd/config.toml":  "version = 2\n",
		}, "containerd", "/srv/k8s/etc/containerd/config.toml", "/srv/k8s/run/containerd/containerd.sock", "snap.k8s.containerd.service", "", "snap.k8s.kubelet.service"},
		{"cri-dockerd by its socket unit", files{
			"/usr/bin/dockerd": "x", "/usr/lib/systemd/system/cri-docker.service": service1("/usr/bin/cri-dockerd --container-runtime-endpoint fd://"),
			"/usr/lib/systemd/system/cri-docker.socket": "[Socket]\nListenStream=%t/cri-dockerd.sock\n", "/usr/lib/systemd/system/kubelet.service": service1("/usr/bin/kubelet --container-runtime-endpoint=unix:///var/run/cri-dockerd.sock"),
		}, "docker", "/etc/docker/daemon.json", "/run/docker.sock", "", "", "kubelet.service"},
		{"containerd by a unit of another name", files{
			"/usr/lib/systemd/system/kubelet.service": service1("/usr/bin/kubelet --container-runtime-endpoint=unix:///run/gpu.sock"),
			"/usr/lib/systemd/system/gpu-cri.service": service1("/usr/bin/containerd -c /srv/c.toml"), "/srv/c.toml": "version = 2\n[grpc]\naddress = \"/run/gpu.sock\"\n",
		}, "containerd", "/srv/c.toml", "/run/gpu.sock", "gpu-cri.service", "", "kubelet.service"},
		{"OpenShift's wrapper", files{
			"/usr/lib/systemd/system/kubelet.service": service1("/usr/local/bin/kubenswrapper /usr/bin/kubelet --config=/etc/kubernetes/kubelet.conf --container-runtime-endpoint=/var/run/crio/crio.sock"),
			"/usr/bin/kubelet":                        "x", "/usr/bin/crio": "x",
		}, "crio", "/etc/crio/crio.conf", "/run/crio/crio.sock", "", "", "kubelet.service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := gather(t, and(c.files, files{"/usr/bin/containerd": "x", own: "version = 2\n"}))
			var e Engine
			for _, one := range f.Engines {
				if f.Kubelet.Uses(one) {
					e = one
					break
				}
			}

			want := [...]string{c.engine, c.config, c.socket, c.unit, c.owner, c.kubelet}
			got := [...]string{e.Name, e.Config, e.Socket, e.Unit, e.Owner, f.Kubelet.Unit}
			check.That(t, got == want, "got  %q\nwant %q", got, want)
		})
	}
}

// TestStated: the spec names the file, and a unit, its wrapper or the data folder of a distribution
// leads to the engine that reads it. The program's own word on its version wins over that of a
// package, whose file it may have replaced.
func TestStated(t *testing.T) {
	const unit, moved = "/etc/systemd/system/x.service", "/data/k3s/agent/etc/containerd/config.toml"
	idle := files{
		"/usr/bin/containerd": "x", "/etc/containerd/config.toml": "version = 2\n", "/srv/c.toml": "version = 3\n", "/opt/x/engine": "x",
		"/var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n", "/var/lib/dpkg/status": "Package: containerd\nStatus: install ok installed\nVersion: 1.7.24\n\n",
	}
	for _, c := range []struct {
		name                         string
		files                        files
		stated                       NamedEngine
		engine, binary, owner, inUse string
	}{
		{"a unit names the file", files{unit: service1("/opt/x/containerd -c /srv/c.toml"), "/opt/x/containerd": "x"}, NamedEngine{Config: "/srv/c.toml"}, "containerd", "/opt/x/containerd", "", "x.service"},
		{"a unit starts the program", files{unit: service1("/opt/x/engine"), "/opt/x/engine": "x"}, NamedEngine{Config: "/srv/c.toml", Binary: "/opt/x/engine"}, "containerd", "/opt/x/engine", "", "x.service"},
		{"a relative name", files{unit: service1("/opt/x/containerd -c c.toml"), "/opt/x/containerd": "x"}, NamedEngine{Config: "/srv/c.toml", Binary: "/opt/x/containerd"}, "containerd", "/opt/x/containerd", "", "x.service"},
		{"CRI-O by another name", files{unit: service1("/opt/x/engine")}, NamedEngine{Config: "/srv/c.toml", Binary: "/opt/x/engine", Name: "crio"}, "crio", "/opt/x/engine", "", "x.service"},
		{"a wrapper", files{"/etc/systemd/system/containerd.service": service1("/opt/start.sh")}, NamedEngine{Config: "/srv/c.toml"}, "containerd", "/usr/bin/containerd", "", "containerd.service"},
		{"K3s, elsewhere", files{"/etc/systemd/system/k3s.service": service1("/usr/local/bin/k3s server"), "/data/k3s/agent/etc/containerd/config.toml": "version = 3\n"}, NamedEngine{Config: moved}, "containerd", "", "k3s", "k3s.service"},
	} {
		maps.Copy(c.files, idle)
		f, err := Gather(t.Context(), asking{c.files}, Needs{Engine: c.stated})
		e := f.Engines[0]
		got := [...]string{e.Name, e.Config, e.Binary, e.Owner, e.Unit}
		check.That(t, err == nil && got == [...]string{c.engine, c.stated.Config, c.binary, c.owner, c.inUse} && len(e.Files[0].Data) > 0, "%s: %q, %v", c.name, got, err)
		check.That(t, c.owner != "k3s" || e.Socket == "/run/k3s/containerd/containerd.sock", "%s: %s", c.name, e.Socket)
		if i := len(f.Engines) - 1; f.Engines[i].Version != "2.1.5" {
			t.Errorf("%s: the package's version %s, not the program's", c.name, f.Engines[i].Version)
		}
	}
}

// asking is a machine whose containerd says which version it is.
type asking struct{ files }

func (asking) Runs() bool { return true }
func (asking) Ask(context.Context, ...string) ([]byte, error) {
	return []byte("containerd github.com/containerd/containerd/v2 v2.1.5 fcd4\n"), nil
}

// TestListener finds the process behind a socket on the machine that runs the test: this one.
func TestListener(t *testing.T) {
	v, err := local.Open("/")
	must.OK(t, err)
	at := filepath.Join(t.TempDir(), "cri.sock")
	server, err := net.Listen("unix", at)
	must.OK(t, err)
	defer server.Close()
	e := new(Cache).begin(v).listener(context.Background(), "unix://"+at)
	must.That(t, e != nil && e.Name == path.Base(os.Args[0]) && e.Socket == at && e.Owner != "", "the engine at %s is %+v, not this process", at, e)
	other := new(Cache).begin(v).listener(context.Background(), at+"x")
	check.That(t, other == nil, "an engine where no process listens: %+v", other)
}
