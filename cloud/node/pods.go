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
	pods, engineErr := podsAt(ctx, v, socket)
	if engineErr == nil && len(pods) == 0 {
		return nil
	}
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return err
	}

	var because []string
	if engineErr != nil { // containers outlive an engine that was stopped
		pods, err = podFolders(v, f.Kubelet)
		if err != nil {
			return err
		}
		const text = "the container engine does not answer at %s: %s"
		because = append(because, fmt.Sprintf(text, socket, trouble.OneLine(engineErr.Error())))
	}

	if len(pods) == 0 {
		return nil
	}

	named := strings.Join(pods[:min(len(pods), podsNamed)], ", ")
	if more := len(pods) - podsNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	running := trouble.Count(len(pods), "pod")
	node := identityOf(machineSpec(v), f).node
	return &trouble.Error{
		What:    fmt.Sprintf("cannot take this machine out of its cluster: it runs %s: %s", running, named),
		Because: append(because, "without kubelet a pod keeps its GPUs, and would run twice once the cluster starts it on another node"),
		Try: []string{
			"kubectl drain " + node + " --ignore-daemonsets --delete-emptydir-data, then undo again",
			"if the cluster is gone: systemctl stop kubelet; crictl -r unix://" + socket + " rmp --all --force; then undo again",
		},
		Err: podsStay,
	}
}

// podFolders names the pods for which kubelet has a folder.
func podFolders(v host.View, k facts.Kubelet) (pods []string, err error) {
	uids, err := v.ReadDir(path.Join(k.Folder(), "pods"))
	if err != nil && !host.NotExist(err) { // no folder, no pods
		return nil, err
	}
	for _, uid := range uids {
		pods = append(pods, "the pod with UID "+uid)
	}
	return pods, nil
}

// kubeletsSocket returns the engine's socket in the configuration that gpuadm wrote for kubelet, ""
// if there is none.
func kubeletsSocket(v host.View) string {
	var config struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	data, err := v.ReadFile(kubelet.ConfigFile)
	if err != nil || yaml.Unmarshal(data, &config) != nil {
		return ""
	}
	return strings.TrimPrefix(config.Endpoint, "unix://")
}

// podsAt names the running pods, by the container engine: ListPodSandboxRequest{filter: {state:
// {state: SANDBOX_READY}}}, of k8s.io/cri-api, api.proto. It needs neither the API server nor a
// running kubelet.
func podsAt(ctx context.Context, v host.View, socket string) ([]string, error) {
	ctx, stop := context.WithTimeout(ctx, engineAnswers)
	defer stop()
	onlyReady := []byte{0x0a, 0x02, 0x12, 0x00}
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", onlyReady)
	if err != nil {
		return nil, err
	}
	return sandboxes(answer)
}

// sandboxes names the pods of a ListPodSandboxResponse that kubectl drain evicts.
func sandboxes(answer []byte) (pods []string, err error) {
	const items = 1
	err = host.ProtoFields(answer, func(field int, item []byte) error {
		if field != items {
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

// sandbox reads a PodSandbox, and reports whether kubectl drain evicts the pod. Kubelet copies a
// pod's labels and annotations to its sandbox (kubernetes, pkg/kubelet/kuberuntime/labels.go). All
// pods of DaemonSets have the label pod-template-generation
// (pkg/controller/daemon/util/daemonset_util.go, CreatePodTemplate), and static pods the annotation
// kubernetes.io/config.source, "file" or "http" (pkg/kubelet/types/pod_update.go).
func sandbox(item []byte) (pod string, drained bool, err error) {
	const metadata, labels, annotations = 2, 5, 6
	name := ""
	namespace := ""
	drained = true
	err = host.ProtoFields(item, func(field int, message []byte) error {
		if field != metadata && field != labels && field != annotations {
			return nil
		}
		texts := map[int]string{} // by field
		err := host.ProtoFields(message, func(field int, value []byte) error {
			texts[field] = string(value)
			return nil
		})
		if field == metadata {
			name = texts[1]
			namespace = texts[3]
			return err
		}

		key, value := texts[1], texts[2] // of an entry of a map
		isStatic := key == "kubernetes.io/config.source" && value != "api"
		if isStatic || key == "pod-template-generation" {
			drained = false
		}
		return err
	})
	return trouble.OneLine(namespace + "/" + name), drained, err
}
