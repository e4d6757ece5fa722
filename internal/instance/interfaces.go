// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"slices"
	"strings"
)

// interfacesOf returns the number of network interfaces on the default network card of an EC2 type,
// and the number of IPv4 addresses of each; the number of pods depends on them. The table is the
// GPU part of the table built into EKS's nodeadm: so no role needs the right to ask EC2, and a node
// has the same number of pods whichever tool joined it. 0 for a type that is not in the table.
//
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/kubelet/instance-info.jsonl
// of commit 81fec2e8 (23 July 2026), which is made of DescribeInstanceTypes. It lacks g3, p3 but
// p3dn, and p6e.
func interfacesOf(kind string) (enis, addresses int) {
	for _, row := range interfaceRows() {
		if slices.Contains(strings.Fields(row.names), kind) {
			return row.enis, row.addresses
		}
	}
	return 0, 0
}

// interfaceRow lists EC2 types with the same interfaces.
type interfaceRow struct {
	enis, addresses int
	names           string
}

func interfaceRows() []interfaceRow {
	return []interfaceRow{
		{2, 10, "g6f.large"},
		{2, 50, "p5.48xlarge p5e.48xlarge"},
		{3, 10, "g4dn.xlarge g4dn.2xlarge g4dn.4xlarge"},
		{4, 15, "g4dn.8xlarge g4dn.16xlarge g5.xlarge g5.2xlarge g5g.xlarge g5g.2xlarge g6.xlarge g6.2xlarge g6f.xlarge g6f.2xlarge g6e.xlarge g6e.2xlarge"},
		{4, 30, "p5.4xlarge"},
		{4, 50, "p5en.48xlarge p6-b200.48xlarge p6-b300.48xlarge"},
		{4, 64, "g7.2xlarge g7e.2xlarge"},
		{7, 50, "g5.48xlarge"},
		{8, 30, "g4dn.12xlarge g5.4xlarge g5.8xlarge g5.16xlarge g5g.4xlarge g5g.8xlarge g6.4xlarge g6.8xlarge gr6.4xlarge gr6.8xlarge g6.12xlarge g6f.4xlarge gr6f.4xlarge g6e.4xlarge g6e.8xlarge"},
		{8, 64, "g7.4xlarge g7e.4xlarge g7e.8xlarge"},
		{10, 30, "g6e.12xlarge"},
		{10, 50, "g6e.24xlarge g6e.48xlarge"},
		{10, 64, "g7.8xlarge g7e.12xlarge g7e.24xlarge g7e.48xlarge"},
		{12, 64, "g7.12xlarge g7.48xlarge"},
		{15, 50, "p3dn.24xlarge p4d.24xlarge p4de.24xlarge g4dn.metal g5.12xlarge g5.24xlarge g5g.16xlarge g5g.metal g6.16xlarge g6.24xlarge g6.48xlarge g6e.16xlarge"},
		{24, 64, "g7.24xlarge"},
	}
}
