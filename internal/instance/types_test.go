// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"regexp"
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
	for cloud, spelled := range spelled {
		for _, row := range knownTypes(cloud) {
			if row.gpus < 1 || row.gpus > 16 || row.gpus&(row.gpus-1) != 0 || row.model == "" {
				t.Errorf("%s: %d GPUs %q", row.names, row.gpus, row.model)
			}
			for name := range strings.FieldsSeq(row.names) {
				if key := cloud + strings.ToLower(name); seen[key] {
					t.Errorf("%s is there twice", name)
				} else {
					seen[key] = true
				}
				if !spelled.MatchString(name) {
					t.Errorf("no name of %s: %s", cloud, name)
				}
				if m := inName.FindStringSubmatch(name); m != nil && m[1] != strconv.Itoa(row.gpus) {
					t.Errorf("%s has %d GPUs", name, row.gpus)
				}
				if got, ok := TypeOf(cloud, name); !ok || got.GPUs != row.gpus {
					t.Errorf("%s: %+v, %t", name, got, ok)
				}
			}
		}
	}
}

func TestTypeOf(t *testing.T) {
	for _, c := range []struct {
		cloud, name string
		gpus        int
		model       string
		verified    bool
	}{
		{"aws", "p5.48xlarge", 8, "H100 80GB", true},
		{"aws", "p5.4xlarge", 1, "H100 80GB", true},
		{"aws", "p4d.24xlarge", 8, "A100 40GB", true},
		{"aws", "g6f.xlarge", 1, "L4", true},
		{"aws", "g5.48xlarge", 8, "A10G", true},
		{"gce", "a2-megagpu-16g", 16, "A100 40GB", true},
		{"gce", "g4-standard-24", 1, "RTX PRO 6000 Server", false},
		{"gce", "g4-standard-48", 1, "RTX PRO 6000 Server", true},
		{"azure", "standard_nd96ISR_h100_v5", 8, "H100 80GB", true},
		{"azure", "Standard_NV12ads_A10_v5", 1, "A10", true},
	} {
		got, ok := TypeOf(c.cloud, c.name)
		if !ok || got.GPUs != c.gpus || got.Model != c.model || got.Verified != c.verified {
			t.Errorf("%s: %+v, %t", c.name, got, ok)
		}
	}
	for _, c := range [][2]string{{"aws", "m7i.large"}, {"gce", "n1-standard-8"}, {"azure", "Standard_D4s_v5"}, {"", "p5.48xlarge"}, {"gce", "p5.48xlarge"}, {"aws", ""}, {"aws", "P5.48xlarge"}} {
		if got, ok := TypeOf(c[0], c[1]); ok {
			t.Errorf("%v: %+v", c, got)
		}
	}
}
