// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import "strings"

// Type is what a cloud's instance type is sold with. It is for comparing with what is found, not for deciding without a look:
// clouds add types faster than tables are kept.
type Type struct {
	GPUs    int    // GPUs that the machine sees
	Model   string // as facts names PCI devices, without the memory where there is one size only: A100 40GB, L40S
	Part    bool   // what it sees is a part of a GPU, cut out by the hypervisor
	Fabric  bool   // it has NVSwitches which this machine's own fabric manager must join the GPUs over
	MIG     bool   // its GPUs can be partitioned
	Source  string // where that is said
	Checked string // source: seen in code that uses it; documentation: read in a vendor's pages; memory: not verified
	Date    string // when it was read
}

// TypeOf returns what is known of an instance type: of Azure in any spelling of its case.
func TypeOf(cloud, name string) (Type, bool) {
	if cloud == "azure" {
		name = strings.ToLower(name)
	}
	for _, row := range knownTypes() {
		if row.cloud != cloud {
			continue
		}
		for known := range strings.FieldsSeq(row.names) {
			if row.cloud == "azure" {
				known = strings.ToLower(known)
			}
			if known == name {
				t := row.Type
				t.MIG = !t.Part && partitions(t.Model)
				t.Date = typesDate
				return t, true
			}
		}
	}
	return Type{}, false
}

// partitions says whether a model can be partitioned: NVIDIA's MIG user guide, "Supported GPUs".
func partitions(model string) bool {
	for _, chip := range []string{"A30", "A100", "H100", "H200", "GH200", "B200", "GB200", "B300", "GB300", "RTX PRO 6000"} {
		if model == chip || strings.HasPrefix(model, chip+" ") {
			return true
		}
	}
	return false
}

// typeRow is some types of one cloud that have the same GPUs.
type typeRow struct {
	cloud, names string
	Type
}
