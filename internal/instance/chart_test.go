// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestChartTypes: on EKS the DaemonSet comes to every instance type that nodeadm's table of GPU types has.
func TestChartTypes(t *testing.T) {
	text := must.Get(os.ReadFile("../../images/chart/values.yaml"))(t)
	var values struct {
		Clouds map[string]struct {
			GPUNodes []struct {
				Key    string
				Values []string
			} `yaml:"gpuNodes"`
		}
	}
	must.OK(t, yaml.Unmarshal(text, &values))
	var is []string
	for _, e := range values.Clouds["eks"].GPUNodes {
		if e.Key == "node.kubernetes.io/instance-type" {
			is = append(is, e.Values...)
		}
	}
	for _, row := range interfaceRows() {
		for name := range strings.FieldsSeq(row.names) {
			if !slices.Contains(is, name) {
				t.Errorf("the chart does not name the instance type %s", name)
			}
		}
	}
}
