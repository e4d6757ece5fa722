// SPDX-License-Identifier: Apache-2.0

// Package chart renders images/chart with Helm's own engine. It is a module of its own, so that
// Helm and Kubernetes are not part of what gpuadm depends on.
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

// release is one installation of the chart.
type release struct{ name, namespace string }

// shipped is the release of the manifests for kubectl.
func shipped() release { return release{"gpuadm", "gpuadm"} }

// render renders the chart with an operator's values, after Helm has compared these with the
// chart's schema.
func (r release) render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	return r.renderChart(load(t), values)
}

func (r release) renderChart(c *chart.Chart, values map[string]any) (map[string]string, error) {
	options := chartutil.ReleaseOptions{
		Name:      r.name,
		Namespace: r.namespace,
		IsInstall: true,
	}
	all, err := chartutil.ToRenderValues(c, values, options, nil)
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
		files, err := shipped().render(t, map[string]any{"cloud": cloud, "createNamespace": true})
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 3 {
			t.Errorf("the chart has %d files, want those of the account and of the DaemonSet, and the notes", len(files))
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
