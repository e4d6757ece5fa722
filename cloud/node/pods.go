// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// engineAnswers is how long a container engine may take to list its pods.
	engineAnswers = 10 * time.Second
	// podsNamed is how many pods a refusal names.
	podsNamed = 5
)

// RefuseWhilePodsRun refuses to take the machine out of its cluster while pods run here. They would
// keep the GPUs with no kubelet to end them, and the cluster would start copies of them on other
// nodes. Pods of DaemonSets and static pods do not count: kubectl drain leaves them too.
func RefuseWhilePodsRun(ctx context.Context, v host.View) error {
	if !v.Live() {
		return nil
	}
	socket := cmp.Or(kubeletsSocket(v), "/run/containerd/containerd.sock")
	pods, err := podsAt(ctx, v, socket)
	if err == nil && len(pods) == 0 {
		return nil
	}
	f, failed := facts.Gather(ctx, v, facts.Needs{})
	if failed != nil {
		return failed
	}
	var because []string
	if err != nil { // containers outlive an engine that was stopped
		pods, because = podFolders(v, f.Kubelet), []string{fmt.Sprintf("the container engine does not answer at %s: %s", socket, trouble.OneLine(err.Error()))}
	}
	if len(pods) == 0 {
		return nil
	}
	w := whose(specOn(v), f)
	running, more := trouble.Count(len(pods), "pod"), ""
	if n := len(pods) - podsNamed; n > 0 {
		pods, more = pods[:podsNamed], fmt.Sprintf(" and %d more", n)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot take this machine out of its cluster: it runs %s: %s%s", running, strings.Join(pods, ", "), more),
		Because: append(because, "without kubelet a pod keeps its GPUs, and would run twice once the cluster starts it on another node"),
		Try: []string{
			"kubectl drain " + w.node + " --ignore-daemonsets --delete-emptydir-data, then undo again",
			"if the cluster is gone: systemctl stop kubelet; crictl -r unix://" + socket + " rmp --all --force; then undo again",
		}, Err: podsStay,
	}
}

// podFolders names the pods for which kubelet has a folder.
func podFolders(v host.View, k facts.Kubelet) []string {
	uids, _ := v.ReadDir(path.Join(k.Folder(), "pods")) // no folder, no pods
	for i, uid := range uids {
		uids[i] = "the pod with UID " + uid
	}
	return uids
}

// kubeletsSocket returns the engine's socket in the configuration that gpuadm wrote for kubelet, ""
// if there is none.
func kubeletsSocket(v host.View) string {
	var is struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	data, err := v.ReadFile(kubelet.ConfigFile)
	if err != nil || yaml.Unmarshal(data, &is) != nil {
		return ""
	}
	return strings.TrimPrefix(is.Endpoint, "unix://")
}

// podsAt names the running pods, by the container engine: ListPodSandboxRequest{filter: {state:
// {state: SANDBOX_READY}}}, of k8s.io/cri-api, api.proto. It needs neither the API server nor a
// running kubelet.
func podsAt(ctx context.Context, v host.View, socket string) ([]string, error) {
	ctx, stop := context.WithTimeout(ctx, engineAnswers)
	defer stop()
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", []byte{0x0a, 0x02, 0x12, 0x00})
	if err != nil {
		return nil, err
	}
	return sandboxes(answer)
}

// sandboxes names the pods of a ListPodSandboxResponse that kubectl drain evicts.
func sandboxes(answer []byte) (pods []string, err error) {
	err = host.ProtoFields(answer, func(n int, item []byte) error {
		if n != 1 { // items
			return nil
		}
		name, drained, err := sandbox(item)
		if drained {
			pods = append(pods, name)
		}
		return err
	})
	slices.Sort(pods)
	return pods, err
}

// sandbox reads a PodSandbox: metadata (2) with name (1) and namespace (3), labels (5), annotations
// (6). It says whether kubectl drain evicts the pod. Kubelet copies a pod's labels and annotations
// to its sandbox (kubernetes, pkg/kubelet/kuberuntime/labels.go). All pods of DaemonSets have the
// label pod-template-generation (pkg/controller/daemon/util/daemonset_util.go, CreatePodTemplate),
// and static pods the annotation kubernetes.io/config.source, "file" or "http"
// (pkg/kubelet/types/pod_update.go).
func sandbox(item []byte) (name string, drained bool, err error) {
	var id, namespace string
	drained = true
	err = host.ProtoFields(item, func(n int, field []byte) error {
		if n != 2 && n != 5 && n != 6 {
			return nil
		}
		texts := map[int]string{} // of a map: its key (1) and its value (2)
		err := host.ProtoFields(field, func(n int, value []byte) error { texts[n] = string(value); return nil })
		switch {
		case n == 2:
			id, namespace = texts[1], texts[3]
		case texts[1] == "pod-template-generation", texts[1] == "kubernetes.io/config.source" && texts[2] != "api":
			drained = false
		}
		return err
	})
	return trouble.OneLine(namespace + "/" + id), drained, err
}
