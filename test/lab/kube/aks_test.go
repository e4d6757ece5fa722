// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	_ "embed"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// azureMachine is a machine of Azure.
func azureMachine(n gpuHost) cloudfake.Machine {
	return cloudfake.Machine{
		ID: "5f2b7a0e-0000-4000-8000-000000000001", Type: "Standard_NC80adis_H100_v5", Region: "eastus", Zone: "1", Name: n.Name,
		Account: "00000000-0000-4000-8000-00000000000a", PrivateIP: n.IP, MAC: "00:0d:3a:00:00:01",
	}
}

// tells wants the metadata service to have been asked for these since the last call, each once or
// more, and for nothing else.
func (n gpuHost) tells(requests ...string) {
	n.t.Helper()
	check.List(n.t, slices.Compact(slices.Sorted(slices.Values(n.since()))), requests, "the metadata service was asked for")
}

// neverPrinted wants a word in no file but these, and in no output.
func (n gpuHost) neverPrinted(word string, but ...string) {
	n.t.Helper()
	r := n.Exec("grep", "-rlFs", "--devices=skip", "-e", word, "/etc", "/var", "/run", "/tmp", "/root", "/usr/local")
	for name := range strings.Lines(r.Stdout) {
		if name = strings.TrimSpace(name); !slices.Contains(but, name) {
			n.t.Errorf("%s is in %s", word, name)
		}
	}

	r = n.Exec("sh", "-c", `journalctl --no-pager | grep -F -e "$1"`, "sh", word)
	check.That(n.t, r.Exit != 0, "%s is in the journal: %s", word, r.Stdout)
}

// aksScripts replace AKS's: they write the files of kubelet and of the container engine, start
// kubelet and wait for it, and say that they are done. They run once in a machine's life, started
// by Azure's agent late in its first boot.
// Source: https://github.com/Azure/AgentBaker, parts/linux/cloud-init/artifacts, cse_start.sh,
// cse_main.sh and cse_config.sh.
//
//go:embed testdata/aks-scripts.sh
var aksScripts string

// aksKubelet is kubelet's unit on AKS's images. Source: the same folder, kubelet.service.
//
//go:embed testdata/aks-kubelet.service
var aksKubelet string

// aksPool makes of a host what one of an AKS pool is before its first boot: AKS's image, and what
// AKS will have written.
func (n gpuHost) aksPool() {
	n.t.Helper()
	token := n.c.Token()
	bootstrap := must.Get(n.c.BearerConfig(kube.Server, token))(n.t)
	engine := n.Get("/etc/containerd/config.toml")
	const rendered = "/opt/azure/rendered"
	for name, text := range map[string]string{
		"/opt/azure/containers/provision.sh": aksScripts, "/etc/systemd/system/kubelet.service": aksKubelet,
		"/etc/systemd/system/kubelet.service.d/10-tlsbootstrap.conf":    "[Service]\nEnvironment=\"KUBELET_TLS_BOOTSTRAP_FLAGS=--kubeconfig /var/lib/kubelet/kubeconfig --bootstrap-kubeconfig /var/lib/kubelet/bootstrap-kubeconfig\"\n",
		"/etc/systemd/system/kubelet.service.d/10-componentconfig.conf": "[Service]\nEnvironment=\"KUBELET_CONFIG_FILE_FLAGS=--config /etc/default/kubeletconfig.json\"\n",
		"/etc/systemd/system/walinuxagent.service":                      "[Unit]\nAfter=network-online.target\n[Service]\nType=simple\nExecStart=/bin/bash /opt/azure/containers/provision.sh\n[Install]\nWantedBy=multi-user.target\n",
		rendered + "/etc/kubernetes/azure.json":                         "{\"aadClientSecret\": \"" + aksSecret + "\"}\n",
		rendered + "/etc/kubernetes/certs/ca.crt":                       string(n.c.CA()),
		rendered + "/etc/default/kubelet":                               "KUBELET_FLAGS=--max-pods=110\nKUBELET_NODE_LABELS=agentpool=gpu,kubernetes.azure.com/agentpool=gpu,kubernetes.azure.com/accelerator=nvidia,kubernetes.azure.com/scalesetpriority=spot\n",
		rendered + "/etc/default/kubeletconfig.json":                    kube.LabConfigFile(),
		rendered + "/var/lib/kubelet/bootstrap-kubeconfig":              bootstrap,
		rendered + "/etc/containerd/config.toml":                        "# AKS writes this\n" + engine,
	} {
		n.Put(name, text, 0o600)
	}

	n.Must("mkdir", "-p", "/opt/bin")
	n.Must("ln", "-s", "/usr/bin/kubelet", "/opt/bin/kubelet")
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "walinuxagent.service")
}

const aksSecret = "planted-in-azure-json-77aa"

// TestLabKubeAKSPool: on a machine of a pool gpuadm is in the image. AKS's scripts join it, and
// start kubelet, which waits for the GPUs; their files stay as they wrote them; and nothing is
// begun on a spot machine that Azure takes away.
func TestLabKubeAKSPool(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "aks-pool", "bookworm")
	n.aksPool()
	const spec = "[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[sharing]\nstrategy = \"single\"\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\n"
	const join = "[join]\nmethod = \"aks\"\n"

	machine := azureMachine(n)
	machine.Name = "aks-gpu-12345678-vmss_0" // not the host's name
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "azure", Machine: machine}})
	n.wants(spec, join)

	t.Log("by hand, before AKS's scripts have run")
	n.gpuadm(0, []string{"plan", "-v"}, "/etc/default/kubelet", "SkipGpuDriverInstall=true", "AKS joins the machines of its pools itself")
	n.gpuadm(75, []string{"apply", "--install"}, "AKS's own scripts to have set this machine up", "cluster-provision.log")

	t.Log("the first boot: the scripts and kubelet wait for the GPUs, and nothing waits for the scripts")
	n.Reboot()
	n.Ready()
	n.heldBack() // the scripts start kubelet when they have written its files: gpuadm-ready.service may be first
	n.condition("True")
	n.seenReady()
	o := n.Object()
	for key, want := range map[string]string{
		"agentpool": "gpu", "kubernetes.azure.com/scalesetpriority": "spot", "example.com/pool": "h100", "nvidia.com/mig.strategy": "single",
	} {
		check.Equal(t, kube.Text(o, "metadata", "labels", key), want, "label %s is", key)
	}

	taints := kube.Taints(o)
	check.That(t, len(taints) == 0, "taints %v", taints)
	n.Must("test", "-e", "/opt/azure/containers/provision.complete")
	check.None(t, n.Must("sh", "-c", "cd /opt/azure/rendered && for f in $(find . -type f); do cmp $f /$f || true; done"), "AKS's files:")
	r := n.gpuadm(0, []string{"apply"})
	check.That(t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)
	n.tells()
	text := n.Must("gpuadm", "facts", "-o", "json") + n.Must("gpuadm", "plan", "-o", "json")
	check.That(t, !strings.Contains(text, aksSecret), "%s is in facts or plan", aksSecret)
	n.neverPrinted(aksSecret, "/etc/kubernetes/azure.json")
}
