// SPDX-License-Identifier: Apache-2.0

// Package instance identifies a cloud's machine: its cloud and, on EC2, its type and its cluster.
//
// Detect reads files and never uses the network. Ask asks EC2's metadata service, which tells each
// machine about itself at a fixed address. AskCluster asks the APIs of EKS and EC2, if no nearer
// source knows the cluster.
package instance

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Cloud is the machine's cloud and the tool that set it up as a node, as far as its files show.
type Cloud struct {
	Name string `json:"name,omitempty"` // aws, gce, azure; "" for none that is known
	Why  string `json:"why,omitempty"`  // the sign seen
	// Managed names the scripts that make the machine a node: eks (nodeadm), eks-hybrid, eks-al2
	// (bootstrap.sh: refused), gke, aks, aks-flex; "" for none.
	Managed    string `json:"managed,omitempty"`
	ManagedWhy string `json:"managedWhy,omitempty"` // the sign seen
	Nodeadm    bool   `json:"nodeadm,omitempty"`    // EKS's nodeadm is on the machine
	ECRPlugin  bool   `json:"ecrPlugin,omitempty"`  // kubelet's plugin that logs in to ECR is installed
	InstanceID string `json:"instanceID,omitempty"` // if the firmware has it
	Type       string `json:"type,omitempty"`       // of the instance, if the firmware has it: g5.xlarge
}

// Instance is EC2's metadata of the machine.
type Instance struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`           // p5.48xlarge
	Region    string            `json:"region"`         // us-east-1
	Zone      string            `json:"zone,omitempty"` // us-east-1a
	PrivateIP string            `json:"privateIP,omitempty"`
	IPv6      string            `json:"ipv6,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"` // where the instance may see them

	UserCluster *Cluster `json:"userCluster,omitempty"` // from the user data's NodeConfig; the rest of it is not kept
}

// Cluster has the facts that a node needs about its cluster.
type Cluster struct {
	Name        string   `json:"name"`
	Server      string   `json:"server"` // https URL of the API server
	CA          []byte   `json:"-"`      // PEM
	ServiceCIDR string   `json:"serviceCIDR,omitempty"`
	DNS         []string `json:"dns,omitempty"`     // by EKS's rule: the services' tenth address
	Version     string   `json:"version,omitempty"` // 1.34, where it was asked
	From        string   `json:"from"`              // user data, kept, DescribeCluster

	PrivateDNS string `json:"privateDNS,omitempty"` // EC2's PrivateDnsName
	ENIs       int    `json:"enis,omitempty"`       // interfaces of the default network card; 0 if unknown
	IPv4PerENI int    `json:"ipv4PerENI,omitempty"` // addresses of each
}

// ClusterRef names a cluster, and says how to reach its cloud's API.
type ClusterRef struct {
	Name   string // "" = as the user data says
	Region string // "" = the machine's own
	Via    host.Via
	// Kept names a file that a join wrote from Cluster.Keep: gpuadm does not ask again for its
	// facts.
	Kept string
	// Stated: node.toml states server, CA and the services' network. EKS is not asked, at most EC2
	// for the node's name.
	Stated bool
	// NodeName is the node's name if it is already decided: gpuadm then does not ask EC2 for it.
	NodeName string
}

// Ask asks EC2's metadata service about the machine. It never uses a proxy, and never takes longer
// than half a minute; if the service refuses, Ask returns at once. Errors are *trouble.Error, or a
// host.Later in a root folder.
func Ask(ctx context.Context, v host.View, c Cloud) (*Instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience+5*time.Second, &trouble.Error{What: "cannot ask EC2's metadata service: it answers too slowly", Passing: true})
	defer cancel()
	e, err := openIMDS(v, c.InstanceID)
	if err != nil {
		return nil, err
	}
	i, err := e.identity(ctx)
	if err != nil {
		return nil, err
	}
	text, err := e.text(ctx, "mac")
	if err != nil {
		return nil, err
	}
	if mac, err := net.ParseMAC(text); err == nil {
		if text, err = e.text(ctx, "network/interfaces/macs/"+mac.String()+"/ipv6s"); err != nil {
			return nil, err
		}
		i.IPv6 = address(strings.Fields(text))
	}
	if i.Tags, err = e.tags(ctx); err != nil {
		return nil, err
	}
	i.UserCluster, err = e.userCluster(ctx)
	return i, err
}

// address returns the first of the texts if it is an IP address.
func address(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(texts[0])
	if err != nil || ip.Zone() != "" {
		return ""
	}
	return ip.String()
}

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
