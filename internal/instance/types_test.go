// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTypes(t *testing.T) {
	seen := map[string]bool{}
	spelled := map[string]*regexp.Regexp{
		"aws":   regexp.MustCompile(`^[gp][0-9a-z-]+\.([0-9]*x?large|metal)$|^gr6f?\.[48]xlarge$`),
		"gce":   regexp.MustCompile(`^[ag][234]x?-[a-z]+-[0-9]+g?$`),
		"azure": regexp.MustCompile(`^Standard_N[A-Za-z0-9_]+_v[0-9]$`),
	}
	inName := regexp.MustCompile(`gpu-([0-9]+)g$`)
	for _, row := range knownTypes() {
		if row.GPUs < 1 || row.GPUs > 16 || row.GPUs&(row.GPUs-1) != 0 {
			t.Errorf("%s: %d GPUs", row.names, row.GPUs)
		}
		if row.Model == "" || !strings.HasPrefix(row.Source, "https://") {
			t.Errorf("%s: model %q, source %q", row.names, row.Model, row.Source)
		}
		if !slices.Contains([]string{"source", "documentation", "memory"}, row.Checked) {
			t.Errorf("%s: checked %q", row.names, row.Checked)
		}
		if row.Fabric && row.GPUs != 8 || row.Part && row.GPUs != 1 {
			t.Errorf("%s: fabric %t, part %t with %d GPUs", row.names, row.Fabric, row.Part, row.GPUs)
		}
		for name := range strings.FieldsSeq(row.names) {
			if key := row.cloud + strings.ToLower(name); seen[key] {
				t.Errorf("%s is there twice", name)
			} else {
				seen[key] = true
			}
			if r := spelled[row.cloud]; r == nil || !r.MatchString(name) {
				t.Errorf("no name of %s: %s", row.cloud, name)
			}
			if m := inName.FindStringSubmatch(name); m != nil && m[1] != strconv.Itoa(row.GPUs) {
				t.Errorf("%s has %d GPUs", name, row.GPUs)
			}
			if got, ok := TypeOf(row.cloud, name); !ok || got.GPUs != row.GPUs || got.Date == "" {
				t.Errorf("%s: %+v, %t", name, got, ok)
			}
		}
	}
}

func TestTypeOf(t *testing.T) {
	for _, c := range []struct {
		cloud, name string
		gpus        int
		model       string
		fabric, mig bool
		part        bool
	}{
		{"aws", "p5.48xlarge", 8, "H100 80GB", true, true, false},
		{"aws", "p5.4xlarge", 1, "H100 80GB", false, true, false},
		{"aws", "p4d.24xlarge", 8, "A100 40GB", true, true, false},
		{"aws", "g6f.xlarge", 1, "L4", false, false, true},
		{"aws", "g5.48xlarge", 8, "A10G", false, false, false},
		{"gce", "a2-megagpu-16g", 16, "A100 40GB", false, true, false},
		{"gce", "g4-standard-24", 1, "RTX PRO 6000 Server", false, false, true},
		{"gce", "g4-standard-48", 1, "RTX PRO 6000 Server", false, true, false},
		{"azure", "standard_nd96ISR_h100_v5", 8, "H100 80GB", true, true, false},
		{"azure", "Standard_NV12ads_A10_v5", 1, "A10", false, false, true},
	} {
		got, ok := TypeOf(c.cloud, c.name)
		if !ok || got.GPUs != c.gpus || got.Model != c.model || got.Fabric != c.fabric || got.MIG != c.mig || got.Part != c.part {
			t.Errorf("%s: %+v, %t", c.name, got, ok)
		}
	}
	for _, c := range [][2]string{{"aws", "m7i.large"}, {"gce", "n1-standard-8"}, {"azure", "Standard_D4s_v5"}, {"", "p5.48xlarge"}, {"gce", "p5.48xlarge"}, {"aws", ""}, {"aws", "P5.48xlarge"}} {
		if got, ok := TypeOf(c[0], c[1]); ok {
			t.Errorf("%v: %+v", c, got)
		}
	}
}
