// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// kubeEnv is where GKE keeps the key that joins machines to the cluster. No output of gpuadm may
// hold it.
const kubeEnv = "TPM_BOOTSTRAP_KEY: planted-kube-env"

// gkeScript replaces GKE's configure-helper.sh: at each boot it writes the files of kubelet and of
// the container engine, and starts kubelet.
// Source: https://github.com/kubernetes/kubernetes/tree/v1.34.4/cluster/gce/gci,
// configure-helper.sh and node.yaml.
const gkeScript = `#!/bin/bash
set -e
for f in $(cd /home/kubernetes/rendered && find . -type f); do install -D -m 0644 /home/kubernetes/rendered/$f /$f; done
systemctl restart containerd.service
systemctl start --no-block kubelet.service
`

// gkeRegisters is what a node of a pool with partitioned GPUs, on spot machines, registers with, by
// kube-env.
// Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus and .../concepts/spot-vms
const gkeRegisters = "--node-labels=cloud.google.com/gke-accelerator=nvidia-h100-80gb,cloud.google.com/gke-gpu-driver-version=disabled," +
	"cloud.google.com/gke-gpu-sharing-strategy=time-sharing," +
	"cloud.google.com/gke-max-shared-clients-per-gpu=2,cloud.google.com/gke-spot=true,cloud.google.com/gke-provisioning=spot " +
	"--register-with-taints=nvidia.com/gpu=present:NoSchedule"

// gkePool makes of a host a node of a GKE pool with Ubuntu's image, which GKE has joined.
func (n gpuHost) gkePool() {
	n.t.Helper()
	kubeconfig := must.Get(n.c.NodeConfig(kube.Server, n.Name))(n.t)
	engine := n.Get("/etc/containerd/config.toml")
	const rendered = "/home/kubernetes/rendered"
	for name, text := range map[string]string{
		"/home/kubernetes/kube-env":                           kubeEnv + "\n",
		"/home/kubernetes/bin/configure-helper.sh":            gkeScript,
		"/var/lib/kubelet/kubeconfig":                         kubeconfig,
		"/etc/systemd/system/kube-node-configuration.service": "[Unit]\nDescription=Configure kubernetes node\nAfter=network-online.target containerd.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/bash /home/kubernetes/bin/configure-helper.sh\n[Install]\nWantedBy=multi-user.target\n",
		rendered + "/etc/systemd/system/kubelet.service":      "[Unit]\nDescription=Kubernetes kubelet\nRequires=network-online.target\nAfter=network-online.target\n[Service]\nRestart=always\nRestartSec=10\nEnvironmentFile=/etc/default/kubelet\nExecStart=/home/kubernetes/bin/kubelet $KUBELET_OPTS\n[Install]\nWantedBy=multi-user.target\n",
		rendered + "/etc/default/kubelet":                     "KUBELET_OPTS=\"--v=2 --cert-dir=/var/lib/kubelet/pki/ --kubeconfig=/var/lib/kubelet/kubeconfig --max-pods=110 --config /home/kubernetes/kubelet-config.yaml " + gkeRegisters + "\"\n",
		rendered + "/home/kubernetes/kubelet-config.yaml":     kube.LabConfigFile() + "cgroupDriver: systemd\n",
		rendered + "/etc/containerd/config.toml":              "# GKE writes this at each boot\n" + engine,
	} {
		n.Put(name, text, 0o600)
	}

	n.Must("ln", "-s", "/usr/bin/kubelet", "/home/kubernetes/bin/kubelet")
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "--now", "kube-node-configuration.service")
	n.Ready()
}

// TestLabKubeGKE: a node of a pool is taken through all stages but the join, which GKE has done;
// GKE's labels, taints and files do not change, over a reboot too; and on Container-Optimized OS
// Google's own installer is named.
func TestLabKubeGKE(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "gke", "trixie")
	machine := cloudfake.Machine{
		ID: "4242424242424242424", Type: "a3-highgpu-2g", Region: "us-central1", Zone: "us-central1-b", Name: n.Name, Account: "lab", PrivateIP: n.IP,
		MAC: "42:01:0a:00:00:01",
	}
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "gce", Machine: machine}})
	n.gkePool()
	n.account()
	before := n.Object()
	const spec = "[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[sharing]\nstrategy = \"single\"\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\nkubeconfig = \"" + accountFile + "\"\nstartup_taint = \"none\"\n[join]\nmethod = \"gke\"\n"
	n.wants(spec)

	t.Log("all stages but the join")
	n.gpuadm(0, []string{"plan", "-v"}, "gpuadm does every stage but that", "gpu-driver-version=disabled", "gke-gpu-partition-size")
	n.settled()
	n.condition("True")
	n.gkes(before)
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
	n.tells()

	t.Log("a reboot, at which GKE rewrites its files")
	n.Reboot()
	n.Ready()
	n.settled()
	n.gkes(before)
	for name := range strings.FieldsSeq(n.Must("sh", "-c", "cd /home/kubernetes/rendered && find . -type f")) {
		n.Must("cmp", "/home/kubernetes/rendered/"+name, "/"+name)
	}
	n.gkeSecrets()

	t.Log("Container-Optimized OS")
	n.Must("sh", "-c", "rm /etc/os-release; printf 'ID=cos\\nVERSION_ID=121\\nPRETTY_NAME=COS\\n' >/etc/os-release")
	const lib64 = "/home/kubernetes/bin/nvidia/lib64" // where GKE's installer puts it there: /usr is read-only
	n.Must("sh", "-ec", "mkdir -p "+lib64+"; mv /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib/*-linux-gnu/libcuda.so.1 "+lib64+"; ldconfig")
	n.gpuadm(0, []string{"apply"}, "Nothing to do.") // GPUs, partitions and labels are verified by that library
	n.wants(spec, "[driver]\nversion = \"580\"\n")
	r := n.Exec("gpuadm", "plan", "-v")
	for _, word := range []string{"Container-Optimized OS loads only modules that Google has signed", "nvidia-driver-installer"} {
		check.That(t, strings.Contains(r.String(), word), "not said: %q in %s", word, r)
	}
}

// TestLabKubeGKEAgent: on a node of a pool that GKE has joined, the pod of images/daemonset does
// every stage but the join: the startup taint that no other controller knows goes once the GPUs are
// ready, and comes back first after a reboot that GKE's scripts start kubelet at.
func TestLabKubeGKEAgent(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "gke-agent", "trixie")
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "gce", Machine: cloudfake.Machine{
		ID: "4242424242424242425", Type: "a3-highgpu-2g", Region: "us-central1", Zone: "us-central1-b", Name: n.Name, Account: "lab", PrivateIP: n.IP,
		MAC: "42:01:0a:00:00:02",
	}}})
	n.gkePool()
	before := n.Object()
	allow(c)
	n.agent("[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[sharing]\nstrategy = \"single\"\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\n[join]\nmethod = \"gke\"\n")
	n.condition("True")
	n.gkes(before)

	t.Log("a reboot with GPUs that do not answer")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
	n.Reboot()
	n.Ready()
	n.seenReady()
	n.condition("False")
	taints := kube.Taints(n.Object())
	check.That(t, len(taints) == 2, "taints %v: want GKE's own and the one that keeps pods away", taints)
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.condition("True")
	n.gkes(before)
	for name := range strings.FieldsSeq(n.Must("sh", "-c", "cd /home/kubernetes/rendered && find . -type f")) {
		n.Must("cmp", "/home/kubernetes/rendered/"+name, "/"+name)
	}
}

// gkes wants a Node with GKE's labels and taints as they were, and ours beside.
func (n gpuHost) gkes(before kube.Object) {
	n.t.Helper()
	o := n.Object()
	labels := kube.At(o, "metadata", "labels").(kube.Object)
	for key, was := range kube.At(before, "metadata", "labels").(kube.Object) {
		check.That(n.t, labels[key] == was, "label %s was %v, is %v", key, was, labels[key])
	}
	for key, want := range map[string]string{"example.com/pool": "h100", "nvidia.com/mig.strategy": "single", "nvidia.com/gpu.present": "true"} {
		check.That(n.t, labels[key] == want, "label %s is %v, want %s", key, labels[key], want)
	}
	n.c.Until("GKE's own taint is the only one", func() string { // ours goes after the condition, and the cluster's when it sees kubelet
		if is := kube.Taints(n.Object()); !slices.Equal(is, []string{"nvidia.com/gpu=present:NoSchedule"}) {
			return fmt.Sprint(is)
		}
		return ""
	})
}

// gkeSecrets wants what GKE and others keep in the machine's attributes to be nowhere else.
func (n gpuHost) gkeSecrets() {
	n.t.Helper()
	_, key, _ := strings.Cut(kubeEnv, ": ")
	text := n.Must("gpuadm", "facts", "-o", "json") + n.Must("gpuadm", "plan", "-o", "json")
	check.That(n.t, !strings.Contains(text, key), "%s is in facts or plan", key)
	n.neverPrinted(key)
}
