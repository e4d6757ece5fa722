// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeDaemonSet: where nothing holds kubelet back, the pod of images/daemonset looks after the node. After a reboot it
// puts the startup taint back first, no pod comes while the GPUs do not answer, and the taint goes once they do.
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

	t.Log("a reboot with GPUs that do not answer")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
	boot := n.BootID()
	n.Reboot()
	if n.BootID() == boot {
		t.Fatal("it is the same boot")
	}
	n.Ready()
	n.c.Until("the taint is back", func() string {
		if taints := kube.Taints(n.Object()); len(taints) != 1 {
			return fmt.Sprint(taints)
		}
		return ""
	})
	n.condition("False")
	n.plain("second")
	if node, _ := n.landed("second"); node != "" {
		t.Error("a pod came while the GPUs did not answer")
	}
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.c.PodReady("default", "second")
	n.untainted()
	is := n.condition("True")
	if !strings.HasSuffix(kube.Text(is, "message"), n.BootID()[28:]) {
		t.Errorf("the condition is of another boot: %v", is)
	}
	if _, landed := n.landed("second"); transition(is).After(landed) {
		t.Errorf("the condition became true at %v, the pod landed at %v", transition(is), landed)
	}
	for _, request := range c.Requests(accountUser) {
		if request == "patch /api/v1/nodes/"+n.Name+"/status" {
			t.Errorf("the ServiceAccount is asked for what kubelet may do: %s", request)
		}
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

// agent starts the DaemonSet's pod on this node alone, as images/daemonset has it but for its name, the image and how often it
// looks.
func (n gpuHost) agent(spec string) {
	n.t.Helper()
	objects, err := kube.Documents(daemonset.Manifest)
	if err != nil {
		n.t.Fatal(err)
	}
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
			pod["nodeSelector"] = kube.Object{"kubernetes.io/hostname": n.Name}
			main := kube.List(pod, "containers")[0]
			main["image"], main["imagePullPolicy"] = lab.AgentImage, "Never"
			main["command"], main["args"] = []string{"/usr/local/sbin/gpuadm"}, []string{"daemonset", "--every", "1s"}
			n.c.Cleanup(func() { n.c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/" + name) })
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
