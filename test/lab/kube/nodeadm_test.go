// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// nodeadmProgram is EKS's nodeadm where GPUADM_TEST_NODEADM names it, else its replacement:
// test/cloudfake/nodeadm says why.
func nodeadmProgram(t *testing.T) string {
	t.Helper()
	name := os.Getenv("GPUADM_TEST_NODEADM")
	if name == "" {
		name = filepath.Join(t.TempDir(), "nodeadm")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", name, "github.com/gpuadm/gpuadm/test/cloudfake/nodeadm")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		output, err := cmd.CombinedOutput()
		must.That(t, err == nil, "cannot build nodeadm's replacement: %v: %s", err, output)
	}

	text := must.Get(os.ReadFile(name))(t)
	return string(text)
}

// toolkitUnit is in the place of a script of the user data that brings the toolkit, after nodeadm
// has looked for it.
const toolkitUnit = "[Unit]\nAfter=nodeadm-config.service\nBefore=gpuadm.service\n[Service]\nType=oneshot\n" +
	"ExecStart=/bin/cp /opt/nvidia-container-runtime /usr/bin/nvidia-container-runtime\n[Install]\nWantedBy=multi-user.target\n"

// nodeadm makes of a host what EKS's images are, and gives it user data as Karpenter does.
func (n gpuHost) nodeadm(cloud kube.Cloud, startup ...kube.Object) {
	n.t.Helper()
	n.Put("/usr/bin/nodeadm", nodeadmProgram(n.t), 0o755)
	for name, text := range lab.NodeadmUnits() {
		n.Put("/etc/systemd/system/"+name, text, 0o644)
	}
	n.Put("/etc/systemd/system/toolkit.service", toolkitUnit, 0o644)
	// The images have AWS's command line, which gives kubelet its tokens.
	n.Put("/usr/bin/aws", "#!/bin/sh\n[ \"$1 $2 $3 $5\" = 'eks get-token --cluster-name --region' ] && exec gpuadm token eks --cluster \"$4\" --region \"$6\"\n", 0o755)
	n.Must("sh", "-ec", "mkdir -p /opt/cni /etc/eks/nodeadm.d; ln -s /usr/lib/cni /opt/cni/bin; mv /usr/bin/nvidia-container-runtime /opt; ctr -n k8s.io images tag lab.invalid/pause:1 localhost/kubernetes/pause:latest")
	config := kube.LabConfig()
	maps.Copy(config, kube.Object{
		"protectKernelDefaults": false, // the lab's hosts may not set the machine's sysctls
		"registerWithTaints":    append([]kube.Object{{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}}, startup...),
	})
	cloud.Machine.UserData = nodeConfig(n.c, cloud.Cluster, kube.Object{"config": config, "flags": []string{"--node-labels=example.com/from=user-data"}},
		"[plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\ndisable_hugetlb_controller = true\ntolerate_missing_hugetlb_controller = true\n")
	n.Cloud(cloud)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "nodeadm-config.service", "nodeadm-run.service", "toolkit.service")
}

// TestLabKubeNodeadm: on EKS's images nodeadm makes the node. gpuadm's NodeConfig lies before
// nodeadm-run reads it; nodeadm-run waits while the GPUs are not ready, and goes on once they do;
// and the node registers with what the user data and node.toml say.
func TestLabKubeNodeadm(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "ip-10-0-1-99.ec2.internal", "trixie")
	cloud := ec2Machine(n.Node, "")
	cloud.Cluster.CA = c.CA()
	n.nodeadm(cloud)
	n.wants("[runtime]\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\n" +
		"[join]\nmethod = \"eks\"\n")
	before := n.Tree([]string{"/etc"}, "/etc/gpuadm")
	r := n.Exec("gpuadm", "apply", "--install")
	must.That(t, r.Exit == 75, "the first apply, on the machine that will be the image: %s", r)

	t.Log("a boot with GPUs that do not answer")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
	n.Options.Waits = "nodeadm-run.service"
	n.Reboot()
	n.active("gpuadm.service", "failed")
	c.Until("nodeadm-run waits", func() string {
		if log := n.Journal("nodeadm-run.service"); !strings.Contains(log, "cannot let kubelet start") {
			return log
		}
		return ""
	})
	if n.Exec("test", "-e", "/run/nodeadm/init").Exit == 0 || n.MainPID("kubelet.service") != 0 || n.Object() != nil {
		t.Errorf("nodeadm has run: %s", n.Journal("nodeadm-run.service"))
	}

	t.Log("they answer again")
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.settled()
	n.Ready()
	n.eksRegistered()
	r = n.gpuadm(0, []string{"apply"})
	check.That(t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)
	check.Has(t, n.Get("/etc/containerd/config.toml"), "/usr/bin/nvidia-container-runtime", "nodeadm has looked for the toolkit too early:")

	t.Log("the next boot")
	c.Delete("/api/v1/nodes/" + n.Name)
	n.Reboot()
	n.Ready()
	n.active("gpuadm-ready.service", "active")
	n.eksRegistered()
	noted, ready, runs := n.at("nodeadm-config.service", "ExecMainExitTimestampMonotonic"), n.at("gpuadm.service", "ExecMainExitTimestampMonotonic"), n.at("nodeadm-run.service", "ExecMainStartTimestampMonotonic")
	check.That(t, noted <= ready && ready <= runs, "nodeadm-config was done at %d µs, gpuadm.service at %d, and nodeadm-run began at %d", noted, ready, runs)
	n.gpuadm(0, []string{"undo", "--to", "all"})
	after := n.Tree([]string{"/etc"}, "/etc/gpuadm")
	diff := before.Diff(after)
	check.That(t, !strings.Contains(diff, "gpuadm"), "undo leaves\n%s", diff)
}

// TestLabKubeNodeadmOpen: with gate = "open" nodeadm-run waits for gpuadm.service to end, however
// it ends: the node of a machine with GPUs that do not answer joins all the same, and a taint
// beside the user data's keeps pods away until they do. A GPU that falls off the bus of the node
// later is named, and the node is not ready before an administrator says that this is intended.
func TestLabKubeNodeadmOpen(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "ip-10-0-1-98.ec2.internal", "trixie")
	cloud := ec2Machine(n.Node, "")
	cloud.Cluster.CA = c.CA()
	n.nodeadm(cloud, kube.Object{"key": "readiness.k8s.io/gpu", "value": "pending", "effect": "NoSchedule"}) // as the NodePool's startupTaints have it
	n.account()
	spec := []string{
		"[runtime]\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\n" +
			"kubeconfig = \"" + accountFile + "\"\n[join]\nmethod = \"eks\"\ngate = \"open\"\n",
	}
	n.wants(spec...)
	r := n.Exec("gpuadm", "apply", "--install")
	must.That(t, r.Exit == 75, "the first apply, on the machine that will be the image: %s", r)

	t.Log("a boot with GPUs that do not answer")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
	n.Reboot()
	n.Ready()
	n.seenReady()
	n.account() // the pod that the first token was bound to had no node, and went
	started := n.at("gpuadm.service", "ExecMainStartTimestampMonotonic")
	ended := n.at("gpuadm.service", "ExecMainExitTimestampMonotonic")
	began := n.at("nodeadm-run.service", "ExecMainStartTimestampMonotonic")
	took := time.Duration(ended-started) * time.Microsecond
	check.That(t, took < agent.WaitLimit, "the boot has waited for the GPUs for %v", took)
	check.That(t, ended <= began, "gpuadm.service was done at %d µs, and nodeadm-run began at %d", ended, began)
	n.condition("False")
	taints := slices.DeleteFunc(kube.Taints(n.Object()), func(taint string) bool {
		return strings.HasPrefix(taint, "example.com/") || strings.HasPrefix(taint, "karpenter.sh/") || strings.HasPrefix(taint, "node.cloudprovider.kubernetes.io/")
	})
	t.Logf("pods are kept away by %v", taints)
	if len(taints) != 1 {
		t.Errorf("taints %v", kube.Taints(n.Object()))
	}

	t.Log("they answer again")
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.settled()
	n.eksRegistered()

	t.Log("a GPU falls off the bus")
	const state = "FAKENVML_STATE=/var/lib/fakenvml.state"
	n.Must("sh", "-ec", "rm -r /sys/bus/pci/devices/0000:28:00.0")
	n.Must("env", state, "fakenvml", "new", "--gpus", "H100-80:1")
	n.gpuadm(1, []string{"apply"}, "the node was ready with 2, and none is at 0000:28:00.0 any more", "gpu_count = 1 in [driver]")
	check.Has(t, kube.Text(n.condition("False"), "message"), "0000:28:00.0", "the condition says")
	n.wants(append(spec, "[driver]\ngpu_count = 1\n")...)
	n.settled()
	n.condition("True")
	n.wants(spec...)
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
}

// eksRegistered wants a node with the labels and taints of the user data and of node.toml, and
// those of its GPUs.
func (n gpuHost) eksRegistered() {
	n.t.Helper()
	n.condition("True")
	n.seenReady()
	o := n.Object()
	for key, want := range map[string]string{
		"example.com/from": "user-data", "example.com/pool": "h100", "nvidia.com/gpu.present": "true", "k8s.amazonaws.com/accelerator": "nvidia-h100",
	} {
		check.Equal(n.t, kube.Text(o, "metadata", "labels", key), want, "label %s is", key)
	}

	taints := slices.Sorted(slices.Values(kube.Taints(o)))
	want := []string{"example.com/gpu=yes:NoSchedule", "karpenter.sh/unregistered:NoExecute", "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"}
	check.That(n.t, slices.Equal(taints, want), "taints %v", taints)
	check.Equal(n.t, kube.Text(o, "spec", "providerID"), "aws:///us-east-1a/i-0abcdef1234567890", "provider id")
}

// TestLabKubeNodeadmRecord has EKS's own nodeadm write its files for the machine and the cluster of
// cloud's TestLikeNodeadm, which compares them with ours: GPUADM_TEST_NODEADM names the program,
// GPUADM_TEST_NODEADM_RECORD the folder of testdata.
func TestLabKubeNodeadmRecord(t *testing.T) {
	folder := os.Getenv("GPUADM_TEST_NODEADM_RECORD")
	if folder == "" || os.Getenv("GPUADM_TEST_NODEADM") == "" {
		t.Skip("it needs EKS's own nodeadm, in GPUADM_TEST_NODEADM, and GPUADM_TEST_NODEADM_RECORD")
	}
	c := cluster.Run(t)
	n := c.Boot("ip-10-0-1-2.ec2.internal", lab.Options{Dist: "trixie"})
	cloud := ec2Machine(n, "")
	cloud.Machine.Type, cloud.Machine.PrivateIP = "p5.48xlarge", "10.0.1.2"
	cloud.Cluster = cloudfake.Cluster{
		Name:        "gpus",
		Server:      "https://api.example",
		CA:          []byte("CA\n"),
		Version:     "1.34",
		ServiceCIDR: "172.20.0.0/16",
	}
	text, err := json.Marshal(kube.Object{"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": kube.Object{
		"cluster": kube.Object{"name": "gpus", "apiServerEndpoint": cloud.Cluster.Server, "certificateAuthority": cloud.Cluster.CA, "cidr": cloud.Cluster.ServiceCIDR},
	}})
	must.OK(t, err)
	cloud.Machine.UserData = string(text)
	n.Cloud(cloud)
	n.Put("/usr/bin/nodeadm", nodeadmProgram(t), 0o755)
	n.Put("/etc/eks/kubelet-version.txt", "Kubernetes v1.34.4\n", 0o644)
	n.Must("sh", "-ec", "mkdir -p /run/cpu /run/node; cd /run/cpu; for i in $(seq 0 191); do mkdir cpu$i; done; echo 0-191 >online")
	for engine, version := range map[string]string{"config.toml": "1.7.27", "config2.toml": "2.1.5"} {
		n.Put("/etc/eks/containerd-version.txt", "containerd github.com/containerd/containerd "+version+"\n", 0o644)
		r := n.Exec("env", "CPU_DIR=/run/cpu", "NODE_DIR=/run/node", "nodeadm", "init", "--skip", "run", "--config-source", "imds://user-data", "--config-cache", "/run/eks/nodeadm/config.json")
		must.That(t, r.Exit == 0, "%v", r)
		for name, to := range map[string]string{
			"/etc/containerd/config.toml": engine, "/etc/containerd/base-runtime-spec.json": "base-runtime-spec.json",
			"/etc/kubernetes/kubelet/config.json": "kubelet-config.json", "/etc/eks/kubelet/environment": "environment",
			"/var/lib/kubelet/kubeconfig": "kubeconfig", "/etc/eks/image-credential-provider/config.json": "credential-provider.json",
		} {
			text := n.Get(name)
			if to == "environment" { // flags have no order there
				head, flags, _ := strings.Cut(strings.TrimSpace(text), "=")
				text = head + "=" + strings.Join(slices.Sorted(slices.Values(strings.Fields(flags))), " ") + "\n"
			}
			must.OK(t, os.WriteFile(filepath.Join(folder, to), []byte(strings.TrimRight(text, "\n")+"\n"), 0o644))
		}

		n.Must("rm", "/run/eks/nodeadm/config.json")
	}

	t.Log("all that it has written:\n" + n.Exec("sh", "-c", "find /etc /var/lib/kubelet /run/eks /run/nodeadm -newer /etc/eks/containerd-version.txt -type f").Stdout)
}
