// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLikeNodeadm compares every key that nodeadm writes with what we write for the same machine
// and cluster; each difference has its reason. testdata/nodeadm is what nodeadm of commit 81fec2e8
// (23 July 2026) has written in the lab for kubelet 1.34.4, 192 CPUs, and a p5.48xlarge with 2
// interfaces of 50 addresses: TestLabKubeNodeadmRecord.
func TestLikeNodeadm(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	l := likeness{T: t, reasons: reasonsOf(t), used: map[string]bool{}}

	config := parseYAML(t, c.read(t, kubelet.ConfigFile))
	l.compare("config", parseJSON(t, eksFile(t, "kubelet-config.json")), config)
	l.compare("flags", flagsOf(eksFile(t, "environment")), flagsOf(c.read(t, kubelet.UnitFile)))

	theirs := parseYAML(t, eksFile(t, "kubeconfig"))
	ours := parseYAML(t, c.read(t, kubelet.Kubeconfig))
	l.compare("kubeconfig", theirs, ours)
	for _, key := range []string{"server", "certificate-authority"} { // the clusters' names differ
		check.Equal(t, clusterKey(ours, key), clusterKey(theirs, key), "%s:", key)
	}
	check.Equal(t, c.read(t, kubelet.ClusterCA), string(c.Cluster.CA), "another CA:")

	credentials := parseJSON(t, c.read(t, instance.ECRConfig))
	l.compare("credentials", parseJSON(t, eksFile(t, "credential-provider.json")), credentials)

	l.compareContainerd("1.7.27", "containerd.toml", "io.containerd.grpc.v1.cri")
	l.compareContainerd("2.1.5", "containerd2.toml", "io.containerd.cri.v1.runtime")

	for at := range l.reasons {
		check.That(t, l.used[at], "a reason without a difference: %s", at)
	}
}

// likeness compares what nodeadm and gpuadm write.
type likeness struct {
	*testing.T
	reasons map[string]string // by path: why the two differ
	used    map[string]bool   // the reasons that a difference has
}

func reasonsOf(t *testing.T) map[string]string {
	t.Helper()
	reasons := map[string]string{}
	for line := range strings.Lines(eksFile(t, "reasons.txt")) {
		at, why, _ := strings.Cut(strings.TrimSpace(line), ": ")
		reasons[at] = why
	}
	return reasons
}

// compare compares two tables, and takes no difference without a reason. A key that only we have has a
// + before it.
func (l likeness) compare(path string, theirs, ours any) {
	l.Helper()
	if l.reasons[path] != "" {
		if !cmp.Equal(theirs, ours) {
			l.used[path] = true
		}
		return
	}

	a, isTable := theirs.(map[string]any)
	b, areTables := ours.(map[string]any)
	if !isTable || !areTables {
		same := cmp.Equal(theirs, ours)
		check.That(l, same, "%s: nodeadm has %v, we have %v, and no reason is given", path, theirs, ours)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		l.compare(path+"."+key, a[key], b[key])
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		_, inBoth := a[key]
		if !inBoth {
			l.compare(path+".+"+key, nil, b[key])
		}
	}
}

// compareContainerd compares what a version of containerd is told about Kubernetes's containers.
func (l likeness) compareContainerd(version, file, plugin string) {
	l.Helper()
	tree := containerd.Tree{Root: containerd.File{Path: "/etc/containerd/config.toml"}}
	handler := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	text, err := containerd.Edit(tree, containerd.Daemon{Version: version}, handler, tree.Root.Path, nil)
	must.OK(l, err)

	var theirs, ours map[string]any
	must.OK(l, toml.Unmarshal([]byte(eksFile(l.T, file)), &theirs))
	must.OK(l, toml.Unmarshal(text, &ours))
	l.compare("containerd", at(theirs, "plugins", plugin), at(ours, "plugins", plugin))
}

func parseJSON(t *testing.T, text string) (data map[string]any) {
	t.Helper()
	must.OK(t, json.Unmarshal([]byte(text), &data))
	return data
}

// parseYAML reads YAML with the types that JSON has: all numbers are floats.
func parseYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var data any
	must.OK(t, yaml.Unmarshal([]byte(text), &data))
	return parseJSON(t, string(must.Get(json.Marshal(data))(t)))
}

// clusterKey is a value of a kubeconfig's first cluster.
func clusterKey(kubeconfig map[string]any, key string) any {
	clusters := kubeconfig["clusters"].([]any)
	return at(clusters[0], "cluster", key)
}

// flagsOf are the flags in a text, as a table.
func flagsOf(text string) map[string]any {
	flags := map[string]any{}
	for _, word := range strings.Fields(text) {
		_, flag, _ := strings.Cut(word, "--")
		name, value, hasValue := strings.Cut(flag, "=")
		if hasValue {
			flags[name] = value
		}
	}

	return flags
}

func eksFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/nodeadm/" + name)
	must.OK(t, err)
	return string(data)
}

// at is what a map[string]any holds deep inside, nil if there is nothing.
func at(t any, keys ...string) any {
	for _, key := range keys {
		is, _ := t.(map[string]any)
		t = is[key]
	}
	return t
}
