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
	reasons := map[string]string{}
	for line := range strings.Lines(eksFile(t, "reasons.txt")) {
		at, why, _ := strings.Cut(strings.TrimSpace(line), ": ")
		reasons[at] = why
	}

	used := map[string]bool{}
	compare := func(at string, theirs, ours any) {
		compareKeys(t, at, theirs, ours, reasons, used)
	}

	var theirs, ours map[string]any
	must.OK(t, json.Unmarshal([]byte(eksFile(t, "kubelet-config.json")), &theirs))
	must.OK(t, yaml.Unmarshal([]byte(c.read(t, kubelet.ConfigFile)), &ours))
	round, err := json.Marshal(ours)
	must.OK(t, err)
	ours = nil
	must.OK(t, json.Unmarshal(round, &ours))
	compare("config", theirs, ours)

	compare("flags", flagsOf(eksFile(t, "environment")), flagsOf(c.read(t, kubelet.UnitFile)))

	theirs, ours = nil, nil
	must.OK(t, yaml.Unmarshal([]byte(eksFile(t, "kubeconfig")), &theirs))
	must.OK(t, yaml.Unmarshal([]byte(c.read(t, kubelet.Kubeconfig)), &ours))
	compare("kubeconfig", theirs, ours)
	for _, keys := range [][]string{{"server"}, {"certificate-authority"}} {
		a, b := at(theirs["clusters"].([]any)[0], "cluster", keys[0]), at(ours["clusters"].([]any)[0], "cluster", keys[0])
		check.That(t, a == b, "%s: nodeadm has %v, we have %v", keys[0], a, b)
	}

	check.Equal(t, c.read(t, kubelet.ClusterCA), string(c.Cluster.CA), "another CA:")

	theirs, ours = nil, nil
	must.OK(t, json.Unmarshal([]byte(eksFile(t, "credential-provider.json")), &theirs))
	must.OK(t, json.Unmarshal([]byte(c.read(t, instance.ECRConfig)), &ours))
	compare("credentials", theirs, ours)

	for version, file := range map[string]string{"1.7.27": "containerd.toml", "2.1.5": "containerd2.toml"} {
		theirs, ours = nil, nil
		must.OK(t, toml.Unmarshal([]byte(eksFile(t, file)), &theirs))
		plugin := "io.containerd.grpc.v1.cri"
		if version > "2" {
			plugin = "io.containerd.cri.v1.runtime"
		}
		tree, h := containerd.Tree{Root: containerd.File{Path: "/etc/containerd/config.toml"}}, engine.Handler{
			Name:   "nvidia",
			Binary: engine.Binary,
		}
		text, err := containerd.Edit(tree, containerd.Daemon{Version: version}, h, tree.Root.Path, nil)
		must.OK(t, err)
		must.OK(t, toml.Unmarshal(text, &ours))
		compare("containerd", cri(theirs, plugin), cri(ours, plugin))
	}

	for at := range reasons {
		check.That(t, used[at], "a reason without a difference: %s", at)
	}
}

// cri is what containerd's configuration says of Kubernetes's containers.
func cri(config map[string]any, plugin string) any {
	return at(config, "plugins", plugin)
}

// compareKeys compares two tables, and takes no difference without a reason. A key that only we
// have has a + before it.
func compareKeys(t *testing.T, path string, theirs, ours any, reasons map[string]string, used map[string]bool) {
	t.Helper()
	if reasons[path] != "" {
		if !cmp.Equal(theirs, ours) {
			used[path] = true
		}
		return
	}

	a, aIs := theirs.(map[string]any)
	b, bIs := ours.(map[string]any)
	if !aIs || !bIs {
		check.That(t, cmp.Equal(theirs, ours), "%s: nodeadm has %v, we have %v, and no reason is given", path, theirs, ours)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		compareKeys(t, path+"."+key, a[key], b[key], reasons, used)
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, both := a[key]; !both {
			compareKeys(t, path+".+"+key, nil, b[key], reasons, used)
		}
	}
}

// flagsOf are the flags in a text, as a table.
func flagsOf(text string) map[string]any {
	flags := map[string]any{}
	for _, word := range strings.Fields(text) {
		_, word, _ = strings.Cut(" "+word, "--")
		if name, value, ok := strings.Cut(word, "="); ok {
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
