// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestKubelet(t *testing.T) {
	const kubeadm = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
	yaml := "apiVersion: kubelet.config.k8s.io/v1beta1\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: \"\"\nkind: KubeletConfiguration\n"
	base := func(more files) files {
		v := files{"/usr/bin/kubelet": "x", "/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet\n"}
		for k, c := range more {
			v[k] = c
		}
		return v
	}

	wrapped := func(config string) files {
		return base(files{
			"/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/opt/start.sh\n",
			"/var/lib/kubelet/config.yaml":            config,
		})
	}

	unit := Kubelet{Binary: "/usr/bin/kubelet", Unit: "kubelet.service"}
	with := func(config, driver, endpoint string) Kubelet {
		k := unit
		k.Config, k.CgroupDriver, k.Endpoint = config, driver, endpoint
		return k
	}

	for _, c := range []struct {
		name  string
		files files
		want  Kubelet
	}{
		{"none", files{"/etc/x": ""}, Kubelet{}},
		{"installed, not joined", base(nil), unit},
		{"a file that the command line does not name", base(files{
			"/var/lib/kubelet/config.yaml": "cgroupDriver: cgroupfs\ncontainerRuntimeEndpoint: unix:///run/crio/crio.sock\n",
		}), unit},
		{"config in kubeadm's place", wrapped(yaml), with("/var/lib/kubelet/config.yaml", "systemd", "")},
		{"kubeadm", base(files{
			"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": kubeadm,
			"/var/lib/kubelet/config.yaml":                          yaml,
			"/var/lib/kubelet/kubeadm-flags.env":                    `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --pod-infra-container-image=registry.k8s.io/pause:3.10"` + "\n",
			"/etc/default/kubelet":                                  "KUBELET_EXTRA_ARGS=--cgroup-driver=cgroupfs\n",
		}), with("/var/lib/kubelet/config.yaml", "cgroupfs", "unix:///run/containerd/containerd.sock")},
		{"JSON and a folder", base(files{
			"/etc/systemd/system/kubelet.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config /etc/k.json --config-dir=/etc/k.d\n",
			"/etc/k.json":      `{"kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs", "containerRuntimeEndpoint": "unix:///a.sock"}`,
			"/etc/k.d/10.conf": `{"cgroupDriver": "systemd"}`, "/etc/k.d/20.txt": `{"cgroupDriver": "x"}`,
		}), with("/etc/k.json", "systemd", "unix:///a.sock")},
		{"broken JSON", wrapped("{"), with("/var/lib/kubelet/config.yaml", "", "")},
		{
			"K3s",
			files{
				"/etc/systemd/system/k3s-agent.service":                              "[Service]\nExecStart=/usr/local/bin/k3s agent\n",
				"/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/k3s/containerd/containerd.sock\n",
			},
			Kubelet{Unit: "k3s-agent.service", CgroupDriver: "systemd", Endpoint: "unix:///run/k3s/containerd/containerd.sock"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := gather(t, c.files).Kubelet
			got := Kubelet{
				Binary:       k.Binary,
				Version:      k.Version,
				Unit:         k.Unit,
				Requires:     k.Requires,
				Config:       k.Config,
				CgroupDriver: k.CgroupDriver,
				Endpoint:     k.Endpoint,
			}
			if d := cmp.Diff(c.want, got); d != "" { // the rest is in TestNode
				t.Error(d)
			}
		})
	}
}

func TestUses(t *testing.T) {
	e := Engine{Socket: "/run/containerd/containerd.sock"}
	for endpoint, want := range map[string]bool{
		"unix:///run/containerd/containerd.sock": true, "unix:///var/run/containerd/containerd.sock": true,
		"/run/containerd/containerd.sock": true, "unix:///run/crio/crio.sock": false, "": false,
	} {
		check.That(t, (Kubelet{Endpoint: endpoint}).Uses(e) == want, "%q: want %v", endpoint, want)
	}
}

// dangling is a machine where links lead nowhere: in an image root, and where the engine has
// stopped, it has no socket.
type dangling struct{ files }

func (dangling) Resolve(name string) (string, error) {
	return "", &fs.PathError{Op: "find", Path: name, Err: fs.ErrNotExist}
}

func (dangling) Readlink(name string) (string, error) {
	if name == "/run/cri.sock" {
		return "containerd/containerd.sock", nil
	}
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrNotExist}
}

func TestEndpointIsADanglingLink(t *testing.T) {
	f, err := Gather(t.Context(), dangling{files{
		"/etc/systemd/system/kubelet.service": service1("/usr/bin/kubelet --container-runtime-endpoint=unix:///run/cri.sock"), "/usr/bin/kubelet": "x",
		"/usr/bin/containerd": "x", "/etc/containerd/config.toml": "version = 2\n",
	}}, Needs{})
	check.That(t, err == nil && len(f.Engines) == 1 && f.Kubelet.Uses(f.Engines[0]), "%v: %v, endpoint %s", err, f.Engines, f.Kubelet.Endpoint)
}
