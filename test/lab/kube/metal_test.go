// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// pluginVariable names the file of NVIDIA's device plugin, which TestMetalNode runs. It is not in
// the lab's cache: a machine with GPUs may want another version. docs/metal.md says how to get it.
const pluginVariable = "GPUADM_DEVICE_PLUGIN"

// TestMetalNode: on a machine whose GPUs and driver are real, a host of the lab with the machine's
// driver becomes a node: gpuadm and kubeadm, NVIDIA's device plugin, and a pod that starts CUDA on
// a GPU. The second apply has nothing to do, and undo restores all files. The state of the GPUs is
// read, and never changed.
func TestMetalNode(t *testing.T) {
	plugin := os.Getenv(pluginVariable)
	must.That(t, plugin != "", "cannot run NVIDIA's device plugin: %s does not name its file: docs/metal.md", pluginVariable)
	c := cluster.Run(t)
	toolkit := parts.Get(t, parts.CTK, parts.Runtime, parts.Hook)
	files := driverFiles(t, toolkit.CTK.Path)
	for _, p := range []parts.Part{toolkit.CTK, toolkit.Runtime, toolkit.Hook} {
		files["/usr/bin/"+filepath.Base(p.Path)] = p.Path
	}
	files[devicePlugin] = plugin
	c.Apply(kube.Object{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": kube.Object{"name": "nvidia"}, "handler": "nvidia"})
	n := gpuHost{c.Boot("metal", lab.Options{Dist: "trixie", Files: files}), c, t}
	n.Must("ldconfig")
	n.Packages()
	n.Put(configFile, kube.LabConfigFile(), 0o644)
	n.wants("[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"metal\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\nwait_for_allocatable = true\n")
	before := n.tree("/etc/kubernetes")

	t.Log(n.gpuadm(0, []string{"facts"}))
	t.Log(n.gpuadm(0, []string{"plan"}))
	t.Log(n.gpuadm(0, []string{"apply", "--install"}, "until the node has joined"))
	n.Join()
	n.Ready()
	n.Put("/etc/systemd/system/devplug.service", "[Unit]\nAfter=kubelet.service\n[Service]\nExecStart="+devicePlugin+
		" --device-list-strategy=envvar\nRestart=always\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Must("systemctl", "enable", "--quiet", "--now", "devplug.service")
	n.settled()
	count := len(strings.Split(strings.TrimSpace(n.Must("nvidia-smi", "-L")), "\n"))
	n.Allocatable("nvidia.com/gpu", count)
	t.Log(kube.Text(n.condition("True"), "message"))
	t.Log(n.Describe())
	r := n.gpuadm(0, []string{"apply"})
	check.That(t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)

	uuid := n.startsCUDA()
	check.That(t, strings.Contains(n.Must("nvidia-smi", "-L"), uuid), "the pod has the GPU %q, which the host does not have", uuid)
	n.soundButForNames()
	t.Log(n.gpuadm(0, []string{"status", "-v"}))

	t.Log("a reboot")
	n.Reboot()
	n.again()
	n.condition("True")
	t.Log(n.gpuadm(0, []string{"undo", "--to", "all"}))
	n.Ready()
	n.same(before, n.tree("/etc/kubernetes"))
}

// soundButForNames wants doctor to find that the lab has no name server, and nothing else.
func (n gpuHost) soundButForNames() {
	n.t.Helper()
	var found struct{ Causes []struct{ Code string } }
	r := n.Exec("gpuadm", "doctor", "-o", "json")
	must.OK(n.t, json.Unmarshal([]byte(r.Stdout), &found))
	var codes []string
	for _, c := range found.Causes {
		codes = append(codes, c.Code)
	}
	check.List(n.t, codes, []string{"SYS-005"}, "doctor finds in %s", r)
}

// devicePlugin is where the host has NVIDIA's device plugin.
const devicePlugin = "/usr/lib/gpuadm-lab/nvidia-device-plugin"

// driverFiles are the device nodes, libraries and programs of this machine's driver, by the names
// that its packages give them. nvidia-ctk knows them: they are what it would give a container.
func driverFiles(t *testing.T, ctk string) map[string]string {
	t.Helper()
	type edits struct {
		DeviceNodes []struct{ Path string }
		Mounts      []struct{ HostPath string }
	}
	var spec struct {
		ContainerEdits edits
		Devices        []struct{ ContainerEdits edits }
	}
	text, err := exec.Command(ctk, "--quiet", "cdi", "generate", "--format=json").Output()
	must.That(t, err == nil, "cannot list the driver's files, with root, on a machine with GPUs: %v", err)
	must.OK(t, json.Unmarshal(text, &spec))
	files := map[string]string{}
	all := []edits{spec.ContainerEdits}
	for _, d := range spec.Devices {
		all = append(all, d.ContainerEdits)
	}
	for _, e := range all {
		for _, d := range e.DeviceNodes {
			files[d.Path] = d.Path
		}
		for _, m := range e.Mounts {
			info, err := os.Stat(m.HostPath)
			if name := filepath.Base(m.HostPath); err != nil || !info.Mode().IsRegular() {
				continue // the socket of a daemon
			} else if strings.Contains(name, ".so") {
				files["/usr/lib/x86_64-linux-gnu/"+name] = m.HostPath
			} else if info.Mode()&0o111 != 0 {
				files["/usr/bin/"+name] = m.HostPath
			} else {
				files[m.HostPath] = m.HostPath
			}
		}
	}

	caps, _ := filepath.Glob("/dev/nvidia-caps/*") // the pattern is well formed
	for _, name := range caps {
		files[name] = name
	}
	return files
}

// startsCUDA runs a pod with one GPU, which starts CUDA there, and returns the GPU's UUID as
// nvidia-smi tells it in the pod.
func (n gpuHost) startsCUDA() (uuid string) {
	n.t.Helper()
	const name = "cuda"
	n.t.Cleanup(func() {
		n.c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0")
	})
	n.c.Apply(kube.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{
			"nodeSelector": kube.Object{"kubernetes.io/hostname": n.Name}, "restartPolicy": "Never", "runtimeClassName": "nvidia",
			"tolerations": []kube.Object{{"key": "example.com/gpu", "operator": "Exists"}},
			"containers": []kube.Object{{
				"name": "main", "image": lab.AgentImage, "imagePullPolicy": "Never",
				"command":   []string{"/bin/sh", "-c", "/usr/bin/nvidia-smi --query-gpu=uuid --format=csv,noheader && /usr/local/sbin/gpuadm start-cuda"},
				"resources": kube.Object{"limits": kube.Object{"nvidia.com/gpu": "1"}},
			}},
		},
	})
	var phase string
	n.c.Until("the pod has ended", func() string {
		o := n.c.Get("/api/v1/namespaces/default/pods/" + name)
		if phase = kube.Text(o, "status", "phase"); phase == "Succeeded" || phase == "Failed" {
			return ""
		}
		return phase
	})
	said := n.Must("sh", "-c", "cut -d' ' -f4- /var/log/pods/default_"+name+"_*/main/*.log")
	must.That(n.t, phase == "Succeeded", "the pod has failed: %s", said)
	n.t.Log(said)
	uuid, _, _ = strings.Cut(said, "\n")
	return uuid
}
