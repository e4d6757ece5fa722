// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// TestChartTypes: on EKS the DaemonSet comes to every instance type that is known here to have GPUs, and to no other.
func TestChartTypes(t *testing.T) {
	text, err := os.ReadFile("../../images/chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Clouds map[string]struct {
			GPUNodes []struct {
				Key    string
				Values []string
			} `yaml:"gpuNodes"`
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var want, is []string
	for _, row := range awsTypes() {
		want = append(want, strings.Fields(row.names)...)
	}
	for _, e := range values.Clouds["eks"].GPUNodes {
		if e.Key == "node.kubernetes.io/instance-type" {
			is = append(is, e.Values...)
		}
	}
	slices.Sort(want)
	slices.Sort(is)
	if d := cmp.Diff(want, is); d != "" {
		t.Errorf("instance types (-known +in the chart)\n%s", d)
	}
}
