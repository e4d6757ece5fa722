// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"slices"
	"strings"
)

// Type is what a cloud's instance type is sold with. It is for comparing with what is found, not for deciding without a look:
// clouds add types faster than tables are kept.
type Type struct {
	GPUs     int    // that the machine sees
	Model    string // as facts names PCI devices, without the memory where there is one size only: A100 40GB, L40S
	Verified bool   // seen in code that uses it or in a vendor's pages; no node is kept from its pods by what is not
}

// TypeOf returns what is known of an instance type: of Azure in any spelling of its case.
func TypeOf(cloud, name string) (Type, bool) {
	for _, row := range knownTypes(cloud) {
		same := func(known string) bool { return known == name || cloud == "azure" && strings.EqualFold(known, name) }
		if slices.ContainsFunc(strings.Fields(row.names), same) {
			return Type{row.gpus, row.model, row.verified}, true
		}
	}
	return Type{}, false
}

// typeRow is some types of one cloud that have the same GPUs.
type typeRow struct {
	names    string
	gpus     int
	model    string
	verified bool
}
