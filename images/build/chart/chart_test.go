// SPDX-License-Identifier: Apache-2.0

// Package chart renders images/chart with Helm's own engine. It is a module of its own, so that
// Helm and Kubernetes are no part of what gpuadm depends on.
package chart

import (
	"bufio"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	source    = "../../chart"
	manifests = "../../daemonset"
)

var update = flag.Bool("update", false, "rewrite the manifests")

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(source)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render renders the chart with an operator's values, after Helm has compared these with the
// chart's schema.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "gpuadm", Namespace: "default", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	short := map[string]string{}
	for name, text := range files {
		short[strings.TrimPrefix(name, "gpuadm/templates/")] = text
	}
	return short, err
}

// TestManifests: the manifests for kubectl are the chart's, and have no field that Kubernetes does
// not know.
func TestManifests(t *testing.T) {
	for _, cloud := range []string{"eks", "aks", "gke", "onprem"} {
		files, err := render(t, map[string]any{"cloud": cloud})
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 2 {
			t.Errorf("the chart has %d files, want those of the account and of the DaemonSet", len(files))
		}
		for name, text := range map[string]string{cloud + ".yaml": files["daemonset.yaml"], "rbac.yaml": files["rbac.yaml"]} {
			same(t, filepath.Join(manifests, name), text)
			if n := strict(t, name, text); n < 2 {
				t.Errorf("%s has %d objects", name, n)
			}
		}
	}
}

func same(t *testing.T, name, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(is) != want {
		t.Errorf("%s is not what the chart renders: make update", name)
	}
}

// strict decodes objects with Kubernetes' own types, and counts them.
func strict(t *testing.T, name, text string) (n int) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; n++ {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decoder.Decode(document, nil, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValues: an operator's values get to where they belong, and wrong ones are refused.
func TestValues(t *testing.T) {
	image := "registry.example/gpuadm@sha256:" + strings.Repeat("a", 64)
	toml := "format = 1\n\n[mig]\nconfig = \"x\" # a comment\n"
	files, err := render(t, map[string]any{
		"cloud": "aks", "image": image, "nodeToml": toml, "keys": []any{"example.com/pool"},
		"tolerations": []any{map[string]any{"key": "team", "operator": "Exists"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := files["daemonset.yaml"]
	for _, want := range []string{"image: " + image, `{"key":"team","operator":"Exists"}`, "    [mig]\n    config = \"x\" # a comment\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	strict(t, "daemonset.yaml", text)
	if rbac := files["rbac.yaml"]; !strings.Contains(rbac, "[\n          \"example.com/pool\",\n        ]") {
		t.Errorf("the keys are not in\n%s", rbac)
	}
	for name, values := range map[string]map[string]any{
		"a cloud that is not known":    {"cloud": "oke"},
		"an image by its tag":          {"image": "gpuadm:latest"},
		"a key that breaks the policy": {"keys": []any{`a", "b`}},
		"no keys":                      {"keys": []any{}},
		"a value that is not known":    {"nodeTOML": ""},
	} {
		if _, err := render(t, values); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
