// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeRegisters: a real kubelet that another program set up registers with gpuadm's labels
// and taints beside those of its owner: by flags in the packages' variable, and by a file in the
// folder of --config-dir. Undo leaves the owner's bytes.
func TestLabKubeRegisters(t *testing.T) {
	const unit = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS --config-dir=/etc/kubernetes/kubelet.conf.d\n"
	for _, c := range []struct {
		name, unit, file string
		labels           map[string]string
	}{
		{"flags", "", "/etc/default/kubelet", map[string]string{"lab.invalid/pool": "h200", "lab.invalid/rack": "7", "example.com/pool": "a"}},
		{"folder", unit, "/etc/kubernetes/kubelet.conf.d/zz-gpuadm.conf", map[string]string{"lab.invalid/pool": "h200"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := cluster.Run(t)
			n := run.Boot("registers-"+c.name, lab.Options{Dist: "trixie", GPUs: 1})
			n.Kubeadm(kube.Kubeadm{
				Token: run.Token(), Flags: "--node-labels=lab.invalid/pool=h200", ExtraFlags: "\"--v=2 --node-labels=lab.invalid/rack=7\"",
				Config: kube.Object{"registerWithTaints": []kube.Object{{"key": "lab.invalid/booting", "effect": "NoSchedule"}}},
			})
			if c.unit != "" {
				n.Put("/etc/systemd/system/kubelet.service.d/20-folder.conf", c.unit, 0o644)
				n.Must("mkdir", "-p", "/etc/kubernetes/kubelet.conf.d")
				n.Must("systemctl", "daemon-reload")
			}

			owner := n.Must("cat", "/etc/default/kubelet")
			n.Put(specFile, "format = 1\n[node]\ngpu_labels = false\nstartup_taint = \"none\"\nlabels = { \"example.com/pool\" = \"a\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\n", 0o644)
			r := n.Exec("gpuadm", "apply")
			if r.Exit != 0 && r.Exit != 75 { // what the API sets waits for the node
				t.Fatalf("%s", r)
			}
			t.Log(r)
			t.Log(n.Must("cat", c.file))
			n.Must("systemctl", "start", "kubelet.service")
			n.Ready()
			o := n.Object()
			for key, want := range c.labels {
				check.Equal(t, kube.Text(o, "metadata", "labels", key), want, "label %s is", key)
			}
			for _, want := range []string{"lab.invalid/booting:NoSchedule", "example.com/gpu=yes:NoSchedule"} {
				got := kube.Taints(o)
				check.That(t, slices.Contains(got, want), "taints %v, want %s", got, want)
			}

			r = n.Exec("gpuadm", "undo", "--to", "all")
			check.That(t, r.Exit == 0, "%s", r)
			check.Equal(t, n.Must("cat", "/etc/default/kubelet"), owner, "after undo")
			r = n.Exec("ls", "/etc/kubernetes/kubelet.conf.d")
			check.That(t, !strings.Contains(r.Stdout, "gpuadm"), "after undo: %s", r)
		})
	}
}

// TestLabKubeRestriction tests what a kubelet's own identity may do to its Node and what not:
// gpuadm's split between kubelet's registration and a ServiceAccount depends on it.
// Source: plugin/pkg/admission/noderestriction of Kubernetes.
func TestLabKubeRestriction(t *testing.T) {
	c := cluster.Run(t)
	const own, other = "/api/v1/nodes/restricted", "/api/v1/nodes/other"
	kubelet := must.Get(c.Node("restricted"))(t)
	t.Cleanup(func() { c.Delete(own); c.Delete(other) })
	c.Apply(kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "other"}})
	taints := func(keys ...string) kube.Object {
		list := []kube.Object{}
		for _, key := range keys {
			list = append(list, kube.Object{"key": key, "effect": "NoSchedule"})
		}
		return kube.Object{"spec": kube.Object{"taints": list}}
	}

	made := taints("lab.invalid/a", "lab.invalid/b")
	made["apiVersion"], made["kind"] = "v1", "Node"
	made["metadata"] = kube.Object{"name": "restricted", "labels": kube.Object{"nvidia.com/gpu.present": "true"}}
	_, err := kubelet.Create(t.Context(), "/api/v1/nodes", made)
	must.That(t, err == nil, "it registers with labels and taints: %v", err)
	label := func(key string) kube.Object {
		return kube.Object{"metadata": kube.Object{"labels": kube.Object{key: "x"}}}
	}
	for _, r := range []struct {
		what, path string
		change     kube.Object
		status     int
	}{
		{"label nvidia.com/", own, label("nvidia.com/x"), 200},
		{"any other label", own, label("example.com/x"), 200},
		{"label without a prefix", own, label("x"), 200},
		{"label node.kubernetes.io/instance-type", own, label("node.kubernetes.io/instance-type"), 200},
		{"label kubelet.kubernetes.io/", own, label("kubelet.kubernetes.io/x"), 200},
		{"label feature.node.kubernetes.io/", own, label("feature.node.kubernetes.io/x"), 200},
		{"label node-role", own, label("node-role.kubernetes.io/gpu"), 403},
		{"label node-restriction", own, label("node-restriction.kubernetes.io/x"), 403},
		{"label kubernetes.io/", own, label("kubernetes.io/x"), 403},
		{"label x.k8s.io/", own, label("x.k8s.io/x"), 403},
		{"a taint more", own, taints("lab.invalid/a", "lab.invalid/b", "lab.invalid/c"), 403},
		{"a taint of its own less", own, taints("lab.invalid/a"), 403},
		{"annotation", own, kube.Object{"metadata": kube.Object{"annotations": kube.Object{"lab.invalid/x": "x"}}}, 200},
		{"cordon", own, kube.Object{"spec": kube.Object{"unschedulable": true}}, 200},
		{"capacity", own + "/status", kube.Object{"status": kube.Object{"capacity": kube.Object{"nvidia.com/gpu": "8"}}}, 200},
		{"a condition", own + "/status", kube.Object{"status": kube.Object{"conditions": []kube.Object{{"type": "GPUReady", "status": "True"}}}}, 200},
		{"another's label", other, label("nvidia.com/x"), 403},
		{"another's status", other + "/status", kube.Object{"status": kube.Object{"capacity": kube.Object{"nvidia.com/gpu": "8"}}}, 403},
	} {
		_, err := kubelet.Merge(t.Context(), r.path, r.change)
		check.That(t, kube.StatusOf(err) == r.status, "%s: %v, want %d", r.what, err, r.status)
	}

	_, err = kubelet.Get(t.Context(), own)
	check.That(t, err == nil, "it reads itself: %v", err)
	_, err = kubelet.Get(t.Context(), other)
	check.That(t, kube.StatusOf(err) == 403, "it reads another: %v", err)
	// What the driver for dynamic allocation offers of its own node it may list as gpuadm asks, and
	// no other's.
	const slices, mine = "/apis/resource.k8s.io/v1/resourceslices", "restricted-gpu.nvidia.com"
	t.Cleanup(func() { c.Delete(slices + "/" + mine) })
	if _, err := c.Admin.Create(t.Context(), slices, kube.Object{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": kube.Object{"name": mine},
		"spec": kube.Object{
			"nodeName": "restricted", "driver": "gpu.nvidia.com", "devices": []kube.Object{{"name": "gpu-0"}},
			"pool": kube.Object{"name": "restricted", "generation": 1, "resourceSliceCount": 1},
		},
	}); err != nil {
		t.Fatal(err)
	}

	const of = slices + "?resourceVersion=0&fieldSelector=spec.nodeName%3D"
	c.Until("its ResourceSlices are listed", func() string { // the cache of resourceVersion=0 lags behind
		if listed, err := kubelet.Get(t.Context(), of+"restricted"); err != nil || len(kube.List(listed, "items")) != 1 {
			return fmt.Sprint(listed, err)
		}
		return ""
	})
	_, err = kubelet.Get(t.Context(), of+"other")
	check.That(t, kube.StatusOf(err) == 403, "it lists another's ResourceSlices: %v", err)
	_, err = c.Bearer("abcdef.0123456789abcdef").Get(t.Context(), own)
	check.That(t, kube.StatusOf(err) == 401, "an unknown token: %v", err)
}
