// SPDX-FileCopyrightText: The gpuadm authors
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
)

// TestWhoRunsTheEngine has each distribution's own layout: units and argument files as its packaging and installer write them (the
// sources are beside the code), and beside it an idle containerd of the machine's, which the kubelet does not use.
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
			if got := [...]string{e.Name, e.Config, e.Socket, e.Unit, e.Owner, f.Kubelet.Unit}; got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// TestListener finds the process behind a socket on the machine that runs the test: this one.
func TestListener(t *testing.T) {
	v, err := local.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "cri.sock")
	server, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	e := new(Cache).look(v).listener(context.Background(), "unix://"+at)
	if e == nil || e.Name != path.Base(os.Args[0]) || e.Socket != at || e.Owner == "" {
		t.Fatalf("the engine at %s is %+v, not this process", at, e)
	}
	if other := new(Cache).look(v).listener(context.Background(), at+"x"); other != nil {
		t.Errorf("an engine where no process listens: %+v", other)
	}
}
