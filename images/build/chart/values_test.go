// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// objects decodes the objects of rendered files, by kind, namespace and name.
func objects(t *testing.T, files map[string]string) map[string]runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	all := map[string]runtime.Object{}
	for _, file := range []string{"rbac.yaml", "daemonset.yaml"} {
		for r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(files[file]))); ; {
			document, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			object, kind, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
			named, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			all[kind.Kind+" "+named.GetNamespace()+"/"+named.GetName()] = object
		}
	}

	return all
}

// made renders a release that the values must not prevent.
func (r release) made(t *testing.T, values map[string]any) map[string]runtime.Object {
	t.Helper()
	files, err := r.render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, files)
}

func podOf(t *testing.T, all map[string]runtime.Object) core.PodSpec {
	t.Helper()
	for _, object := range all {
		if set, ok := object.(*apps.DaemonSet); ok {
			return set.Spec.Template.Spec
		}
	}

	t.Fatal("there is no DaemonSet")
	return core.PodSpec{}
}

// TestValues: an operator's values get to where they belong.
func TestValues(t *testing.T) {
	image := "registry.example/gpuadm@sha256:" + strings.Repeat("a", 64)
	all := release{"pool-a", "gpu"}.made(t, map[string]any{
		"cloud": "aks", "image": image, "keys": []any{"example.com/pool"}, "interval": "1h",
		"tolerations":       []any{map[string]any{"key": "team", "operator": "Exists"}},
		"imagePullSecrets":  []any{map[string]any{"name": "registry"}},
		"nodeSelector":      map[string]any{"agentpool": "a", "kubernetes.io/os": "linux"},
		"priorityClassName": "high",
		"resources":         map[string]any{"limits": map[string]any{"memory": "200Mi"}},
	})

	is := podOf(t, all)
	main := is.Containers[0]
	wantArgs := []string{"daemonset", "--every", "1h"}
	if main.Image != image || !slices.Equal(main.Args, wantArgs) || main.Resources.Limits.Memory().String() != "200Mi" {
		t.Errorf("the container is %+v", main)
	}
	if len(is.ImagePullSecrets) != 1 || is.ImagePullSecrets[0].Name != "registry" || is.PriorityClassName != "high" {
		t.Errorf("the secrets are %v, the class is %s", is.ImagePullSecrets, is.PriorityClassName)
	}
	if want := map[string]string{"agentpool": "a", "kubernetes.io/os": "linux"}; !maps.Equal(is.NodeSelector, want) {
		t.Errorf("the node selector is %v, want %v", is.NodeSelector, want)
	}
	if !slices.ContainsFunc(is.Tolerations, func(a core.Toleration) bool { return a.Key == "team" }) {
		t.Errorf("the tolerations are %v", is.Tolerations)
	}

	for _, name := range []string{
		"ServiceAccount gpu/pool-a-gpuadm", "ConfigMap gpu/pool-a-gpuadm", "DaemonSet gpu/pool-a-gpuadm", "ClusterRole /gpu.pool-a-gpuadm",
		"Role default/gpu.pool-a-gpuadm-events", "ValidatingAdmissionPolicy /gpu.pool-a-gpuadm-own-node",
	} {
		if all[name] == nil {
			t.Errorf("there is no %s among %v", name, slices.Sorted(maps.Keys(all)))
		}
	}
}

// TestTolerations: on each cloud the tolerations that an operator names are those of the pod,
// beside those of nodes with GPUs; without any the pod tolerates all, where the cloud allows it.
func TestTolerations(t *testing.T) {
	for _, cloud := range []string{"eks", "gke", "onprem", "aks"} {
		blanket := func(values map[string]any) bool {
			values["cloud"] = cloud
			list := podOf(t, shipped().made(t, values)).Tolerations
			return slices.ContainsFunc(list, func(a core.Toleration) bool {
				return a.Key == ""
			})
		}

		if blanket(map[string]any{}) != (cloud != "aks") {
			t.Errorf("%s: without tolerations the pod tolerates the wrong taints", cloud)
		}
		if blanket(map[string]any{"tolerations": []any{map[string]any{"key": "team", "operator": "Exists"}}}) {
			t.Errorf("%s: the pod tolerates all taints, though the values name some", cloud)
		}
	}
}

// TestNodeTomlBytes: the pod finds each byte of node.toml.
func TestNodeTomlBytes(t *testing.T) {
	for _, text := range []string{
		"format = 1\n", "format = 1", "format = 1\n\n\n", "\n\nformat = 1\n", "  format = 1\n[node]\n", "\tformat = 1\n",
		"format = 1\r\n[node]\r\n", "format = 1\n   \n[node]\n\t\n", "format = 1   \n", "# a comment\nformat = 1\n",
		"--- \nformat = 1\n", "format = 1 # \u00e4\u4e2d\u2028\ufeff\u0085\U0001F600\n", "# \u0080\u007f\n",
		"{{ .Values.image }} = 1\n", "a = '''\n\n\n  x\n   \n'''\n", "[node]\n\n\n[mig]\n", "\ufeffformat = 1\n", "#\u00a0x\n",
		"- a\n", "? a: b\n", "%YAML\n", "[mig]\nconfig = \"x\" # a comment\n", "| a\n", "format = 1\n---\n", "\u00e4 = 1\n",
	} {
		config, _ := shipped().made(t, map[string]any{"nodeToml": text})["ConfigMap gpuadm/gpuadm"].(*core.ConfigMap)
		if is := config.Data["node.toml"] + string(config.BinaryData["node.toml"]); is != text {
			t.Errorf("%q arrives as %q", text, is)
		}
	}

	plain, _ := shipped().made(t, map[string]any{})["ConfigMap gpuadm/gpuadm"].(*core.ConfigMap)
	if plain.Data["node.toml"] == "" {
		t.Error("a plain node.toml cannot be read in the ConfigMap")
	}
}

// TestOddNames: a release and a namespace of digits alone are texts in all objects.
func TestOddNames(t *testing.T) {
	for _, r := range []release{
		{"1", "2"}, {"true", "null"}, {"1e3", "0x1f"}, {"gpuadm", "default"}, {strings.Repeat("r", 53), strings.Repeat("n", 63)},
	} {
		if all := r.made(t, map[string]any{}); len(all) != 9 {
			t.Errorf("%v has %d objects: %v", r, len(all), slices.Sorted(maps.Keys(all)))
		}
	}
}

// TestTwoReleases: no object of a release is one of another.
func TestTwoReleases(t *testing.T) {
	seen := map[string]release{}
	for _, r := range []release{
		{"gpuadm", "gpuadm"}, {"a", "gpuadm"}, {"a", "b"}, {"gpuadm", "a"}, {"gpuadm-b", "a"}, {"b", "a-gpuadm"}, {"a-gpuadm", "a-gpuadm"},
	} {
		for name := range r.made(t, map[string]any{}) {
			if other, is := seen[name]; is {
				t.Errorf("%v and %v have both %s", r, other, name)
			}
			seen[name] = r
		}
	}
}

// refused are values that cannot work.
func refused() map[string]map[string]any {
	digest := "@sha256:" + strings.Repeat("a", 64)
	key := func(name string) map[string]any { return map[string]any{"keys": []any{name}} }
	tolerate := func(t any) map[string]any { return map[string]any{"tolerations": []any{t}} }
	return map[string]map[string]any{
		"a cloud that is not known":    {"cloud": "oke"},
		"an image by its tag":          {"image": "gpuadm:latest"},
		"an image with a blank":        {"image": "a b" + digest},
		"an image with a line feed":    {"image": "a" + digest + "\n"},
		"an image without a name":      {"image": digest},
		"a key that breaks the policy": key(`a", "b`),
		"all keys":                     key("*"),
		"all keys of all domains":      key("*/*"),
		"part of a domain":             key("example.*/x"),
		"a key of node restriction":    key("node-restriction.kubernetes.io/x"),
		"node restriction":             key("node-restriction.kubernetes.io/*"),
		"a part of node restriction":   key("a.node-restriction.kubernetes.io/*"),
		"roles":                        key("node-role.kubernetes.io/*"),
		"a blank in a key":             key("a /b"),
		"no keys":                      {"keys": []any{}},
		"a value that is not known":    {"nodeTOML": ""},
		"an empty node.toml":           {"nodeToml": ""},
		"a node.toml of blanks":        {"nodeToml": " \n\t"},
		"no node.toml":                 {"nodeToml": nil},
		"no image":                     {"image": nil},
		"null keys":                    {"keys": nil},
		"no cloud":                     {"cloud": nil},
		"null clouds":                  {"clouds": nil},
		"a null cloud":                 {"clouds": map[string]any{"onprem": nil}},
		"null gpuNodes":                {"gpuNodes": nil},
		"no gpuNodes":                  {"gpuNodes": []any{}},
		"a null term":                  {"gpuNodes": []any{nil}},
		"null terms of need":           {"needed": nil},
		"another system":               {"nodeSelector": map[string]any{"kubernetes.io/os": "windows"}},
		"a number in a selector":       {"nodeSelector": map[string]any{"pool": 1}},
		"a toleration of nothing":      tolerate(map[string]any{}),
		"an unknown effect":            tolerate(map[string]any{"key": "a", "effect": "No"}),
		"a null toleration":            tolerate(nil),
		"all taints on AKS":            {"cloud": "aks", "tolerations": []any{map[string]any{"operator": "Exists"}}},
		"a secret by its name alone":   {"imagePullSecrets": []any{"registry"}},
		"an interval without a unit":   {"interval": "10"},
		"an interval of nothing":       {"interval": "0s"},
		"an empty interval":            {"interval": ""},
		"an unknown resource field":    {"resources": map[string]any{"request": map[string]any{}}},
		"a quantity that is none":      {"resources": map[string]any{"requests": map[string]any{"cpu": "much"}}},
		"a name with a slash":          {"fullnameOverride": "a/b"},
	}
}

// TestRefused: values that cannot work are refused before anything is made.
func TestRefused(t *testing.T) {
	for name, values := range refused() {
		if _, err := shipped().render(t, values); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestKept: values of the chart before, which has fewer keys, still make all objects: helm upgrade
// --reuse-values knows no defaults of the new chart.
func TestKept(t *testing.T) {
	before := []string{"cloud", "image", "nodeToml", "keys", "tolerations", "gpuNodes", "needed", "clouds"}
	c := load(t)
	maps.DeleteFunc(c.Values, func(key string, _ any) bool {
		return !slices.Contains(before, key)
	})
	if len(c.Values) != len(before) {
		t.Fatalf("the values are %v", slices.Sorted(maps.Keys(c.Values)))
	}

	files, err := shipped().renderChart(c, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	if all := objects(t, files); len(all) != 9 {
		t.Errorf("there are %d objects", len(all))
	}
}
