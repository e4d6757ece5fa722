// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeDaemonSet: where nothing holds kubelet back, the pod of images/daemonset looks after
// the node. After a reboot it puts the startup taint back first, no pod comes while the GPUs do not
// answer, and the taint goes once they do.
func TestLabKubeDaemonSet(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "daemonset", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	allow(c)
	n.agent(partitionedBy)
	n.lets("first")
	n.untainted()
	t.Logf("kubelet's identity: %v", c.Requests(n.user()))
	n.cheap()

	t.Log("a reboot with GPUs that do not answer")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
	boot := n.BootID()
	n.Reboot()
	must.That(t, n.BootID() != boot, "it is the same boot")
	n.Ready()
	n.c.Until("the taint is back", func() string {
		if taints := kube.Taints(n.Object()); len(taints) != 1 {
			return fmt.Sprint(taints)
		}
		return ""
	})
	n.condition("False")
	n.plain("second")
	node, _ := n.landed("second")
	check.That(t, node == "", "a pod came while the GPUs did not answer")
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.c.PodReady("default", "second")
	n.untainted()
	is := n.condition("True")
	check.That(t, strings.HasSuffix(kube.Text(is, "message"), n.BootID()[28:]), "the condition is of another boot: %v", is)
	if _, landed := n.landed("second"); transition(is).After(landed) {
		t.Errorf("the condition became true at %v, the pod landed at %v", transition(is), landed)
	}
	n.takenOff()
	for _, request := range c.Requests(accountUser) {
		check.That(t, request != "patch /api/v1/nodes/"+n.Name+"/status", "the ServiceAccount is asked for what kubelet may do: %s", request)
	}
}

// removal are the commands by which the manifest's head takes gpuadm off a node: one before and one
// after the DaemonSet is deleted.
func removal(t *testing.T) (commands []string) {
	t.Helper()
	for line := range strings.Lines(string(manifest(t, "onprem"))) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "#   sudo "); ok {
			commands = append(commands, command)
		}
	}

	must.That(t, len(commands) == 2, "the manifest's head has the commands %q, want one before and one after the DaemonSet is deleted", commands)
	return commands
}

// undone runs an undo until the pod's apply lets it, and returns what it printed.
func (n gpuHost) undone(command string) (r lab.Result) {
	n.t.Helper()
	n.c.Until("undo is done", func() string { // exit code 75: the pod's apply is at work
		r = n.Exec("sh", "-c", command)
		must.That(n.t, r.Exit == 0 || r.Exit == 75, "%v", r)
		if r.Exit == 75 {
			return r.String()
		}
		return ""
	})
	return r
}

// takenOff does what the manifest's head says of taking gpuadm off a node, and wants nothing of it
// left.
func (n gpuHost) takenOff() {
	n.t.Helper()
	commands := removal(n.t)
	n.undone(commands[0])
	for key := range kube.At(n.Object(), "metadata", "labels").(kube.Object) {
		if strings.HasPrefix(key, "nvidia.com/") {
			n.t.Errorf("after %s the Node has the label %s", commands[0], key)
		}
	}

	if is := n.condition("Unknown"); kube.Text(is, "reason") != "Undone" {
		n.t.Errorf("after %s the condition is %v", commands[0], is)
	}
	n.c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm-" + n.Name)
	n.podGone()
	n.Must("sh", "-c", commands[1])
	if left := n.Must("sh", "-c", "ls -d /var/lib/gpuadm /run/gpuadm /etc/systemd/system/*gpuadm* 2>/dev/null || true"); left != "" {
		n.t.Errorf("after %s there is %s", commands[1], left)
	}
}

const partitionedBy = "[runtime]\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[node]\n"

// lets wants a pod that tolerates nothing to come.
func (n gpuHost) lets(name string) {
	n.t.Helper()
	n.condition("True")
	n.plain(name)
	n.c.PodReady("default", name)
}

func (n gpuHost) untainted() {
	n.t.Helper()
	n.c.Until("the taint is off", func() string {
		if taints := kube.Taints(n.Object()); len(taints) > 0 {
			return fmt.Sprint(taints)
		}
		return ""
	})
}

// nfdLabel is what Node Feature Discovery puts on a node with NVIDIA's devices, by which the
// DaemonSet finds it.
const nfdLabel = "feature.node.kubernetes.io/pci-10de.present"

// agent starts the DaemonSet's pod on this node alone, as images/daemonset has it but for its name,
// the image and how often it looks: each second.
func (n gpuHost) agent(spec string) {
	n.t.Helper()
	n.agentEvery("1s", spec)
}

// agentEvery is agent with the time between two looks.
func (n gpuHost) agentEvery(pause, spec string) {
	n.t.Helper()
	objects := must.Get(kube.Documents(manifest(n.t, "onprem")))(n.t)
	for _, o := range objects {
		name := "gpuadm-" + n.Name
		kube.At(o, "metadata").(kube.Object)["name"] = name
		switch o["kind"] {
		case "ConfigMap":
			o["data"] = kube.Object{"node.toml": "format = 1\n" + spec}
		case "DaemonSet":
			pod := kube.At(o, "spec", "template", "spec").(kube.Object)
			kube.At(o, "spec", "selector", "matchLabels").(kube.Object)["app"] = name
			kube.At(o, "spec", "template", "metadata", "labels").(kube.Object)["app"] = name
			for _, volume := range kube.List(pod, "volumes") {
				if from, ok := volume["configMap"].(kube.Object); ok {
					from["name"] = name
				}
			}

			kube.At(pod, "nodeSelector").(kube.Object)["kubernetes.io/hostname"] = n.Name
			n.c.Merge("/api/v1/nodes/"+n.Name, kube.Object{"metadata": kube.Object{"labels": kube.Object{nfdLabel: "true"}}})
			main := kube.List(pod, "containers")[0]
			main["image"], main["imagePullPolicy"] = lab.AgentImage, "Never"
			main["command"], main["args"] = []string{"/usr/local/sbin/gpuadm"}, []string{"daemonset", "--every", pause}
			n.c.Cleanup(func() {
				n.c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/" + name)
			})
		}

		n.c.Apply(o)
	}

	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("what the pod had the machine do:\n%s%s", n.Exec("journalctl", "--no-pager", "--lines=60", "--unit=gpuadm-daemonset.service"),
				n.Exec("sh", "-c", "cat /run/gpuadm/daemonset.log; tail -n 40 /var/log/pods/gpuadm*/*/*.log"))
		}
	})
}

const (
	// measured is how many applies of a converged node are measured.
	measured = 10
	// mostRequests is how many requests one of them may send: a defect that asks in a loop is seen
	// here, and by no other test.
	mostRequests = 3
	// hourly is how often the shipped manifest applies: each ten minutes.
	hourly = 6
)

// requests counts what the pod and the machine's apply have asked the API server for, and how many
// applies that were: before each the pod tries once whether the policy limits its account.
func (n gpuHost) requests() (count map[string]int, applies int) {
	count = map[string]int{}
	for _, request := range append(n.c.PodsRequests(accountUser, n.Name), n.c.Requests(n.user())...) {
		count[request]++
	}
	return count, count["patch /api/v1/nodes/"+n.Name+"?dryRun=All"]
}

// cheap measures what the DaemonSet costs on a node that is converged.
func (n gpuHost) cheap() {
	n.t.Helper()
	const pid = `for p in /proc/[0-9]*; do [ "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" = "/usr/local/sbin/gpuadm daemonset --every 1s " ] && break; done; `
	ticks := func() (t int) { // of 10 ms, user and system
		for _, word := range strings.Fields(n.Must("sh", "-c", pid+`cut -d' ' -f14,15 $p/stat`)) {
			var some int
			must.Get(fmt.Sscan(word, &some))(n.t)
			t += some
		}
		return t
	}

	before, began := n.requests()
	spent := ticks()
	after, applies, waiting := before, 0, 0
	n.c.Until("converged applies are over", func() string {
		var kilobytes int
		_, err := fmt.Sscan(n.Must("sh", "-c", pid+"sed -n 's/^VmRSS://p' $p/status"), &kilobytes)
		if err == nil && (waiting == 0 || kilobytes < waiting) {
			waiting = kilobytes
		}
		if after, applies = n.requests(); applies < began+measured {
			return fmt.Sprintf("%d of %d", applies-began, measured)
		}
		return ""
	})
	applies -= began
	sum := 0
	for request := range after {
		after[request] -= before[request]
		sum += after[request]
	}

	took := time.Duration(ticks()-spent) * 10 * time.Millisecond
	n.t.Logf("converged, %d applies: %d requests, %s of CPU in the pod, %d kB resident while it waits\n%v\n%s", applies, sum, took, waiting, after,
		n.Must("sh", "-c", pid+"grep VmHWM $p/status"))
	n.t.Logf("an hour, %d applies: %d requests and %s of CPU in the pod", hourly, hourly*sum/applies, took*hourly/time.Duration(applies))
	n.t.Logf("apply in the machine: %s",
		n.Exec("bash", "-c", "time -p /var/lib/gpuadm/daemonset apply --unattended -f /run/gpuadm/node.toml >/dev/null"))
	check.That(n.t, sum <= mostRequests*(applies+1), "%d applies that change nothing sent %d requests", applies, sum)
}
