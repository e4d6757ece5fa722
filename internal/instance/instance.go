// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package instance finds out what a cloud's machine is: in which cloud, and on EC2 of which type and in which cluster.
//
// Detect reads files and never the network. Ask asks EC2's metadata service, which answers each machine about itself
// at a fixed address. AskCluster asks the APIs of EKS and EC2, where nothing nearer knows the cluster.
package instance

import (
	"github.com/gpuadm/gpuadm/internal/host"
)

// Cloud is where the machine runs and who set it up as a node, as far as its files tell.
type Cloud struct {
	Name string `json:"name,omitempty"` // aws, gce, azure; "" for none that is known
	Why  string `json:"why,omitempty"`  // the sign seen
	// Managed says whose scripts make the machine a node: eks (nodeadm), eks-hybrid, eks-al2 (bootstrap.sh), gke, aks,
	// aks-flex; "" for none.
	Managed    string `json:"managed,omitempty"`
	ManagedWhy string `json:"managedWhy,omitempty"` // the sign seen
	Nodeadm    bool   `json:"nodeadm,omitempty"`    // EKS's nodeadm is on the machine
	ECRPlugin  bool   `json:"ecrPlugin,omitempty"`  // kubelet's plugin that logs in to ECR is, too
	InstanceID string `json:"instanceID,omitempty"` // where the firmware says it
	Type       string `json:"type,omitempty"`       // of the instance, where the firmware says it: g5.xlarge
}

// Instance is what EC2's metadata service says of the machine.
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

// Cluster is what a node must know of its cluster.
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

// ClusterRef says which cluster is meant and how its cloud's API is reached.
type ClusterRef struct {
	Name   string // "" = as the user data says
	Region string // "" = the machine's own
	Via    host.Via
	// Kept names a file that a join wrote from Cluster.Keep: what it holds is not asked again.
	Kept string
	// Stated: node.toml states server, CA and the services' network. EKS is not asked, at most EC2 for the node's name.
	Stated bool
	// NodeName is the node's name where it is settled already: EC2 is not asked for one then.
	NodeName string
}
