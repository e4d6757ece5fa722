// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

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
	// Kept names a file that a join wrote from Cluster.Keep. gpuadm does not ask again for what it
	// has.
	Kept string
	// Stated: node.toml has server, CA and the services' network. gpuadm does not ask EKS, and asks
	// EC2 only for the node's name.
	Stated bool
	// NodeName is the node's name if it is already decided: gpuadm then does not ask EC2 for it.
	NodeName string
}

// apiPatience limits all calls to a cloud's API together. Then gpuadm exits with "run it again", so
// that the boot unit shows why it waits.
const apiPatience = time.Minute

// AskCluster returns the machine's EKS cluster: from the user data, else from the kept file, else
// from EKS's own API. That API throttles, and refused some of 400 machines that started together:
// so it comes last, and a machine that has joined never asks it again. Errors are *trouble.Error,
// or a host.Later in a root folder.
// Source: https://github.com/awslabs/amazon-eks-ami/issues/803
func AskCluster(ctx context.Context, v host.View, i *Instance, want ClusterRef) (*Cluster, error) {
	if c := keptCluster(v, i, want); c != nil {
		return c, nil
	}

	c := knownCluster(i, want)
	if c.Name == "" {
		return nil, &trouble.Error{
			What:    "cannot find out which cluster to join: neither node.toml nor the user data names it",
			Because: []string{"user data names it in a NodeConfig of " + nodeConfigGroup},
			Try:     []string{"[join] cluster = \"NAME\""},
		}
	}

	needsCluster := !want.Stated && !c.complete()
	needsName := want.NodeName == ""
	if !needsCluster && !needsName {
		return c, nil
	}

	tooSlow := &trouble.Error{
		What:    "cannot ask AWS about the cluster: it took longer than " + apiPatience.String(),
		Passing: true,
	}
	ctx, cancel := context.WithTimeoutCause(ctx, apiPatience, tooSlow)
	defer cancel()

	a, err := openAWS(ctx, v, i, want)
	if err != nil {
		return nil, err
	}
	if needsCluster {
		if err := a.describeCluster(ctx, c); err != nil {
			return nil, err
		}
	}
	if needsName {
		if err := a.describeInstance(ctx, i, c); err != nil {
			return nil, err
		}
	}

	if c.ENIs == 0 { // the table does not have the instance's type
		a.describeType(ctx, i, c)
	}
	return c, nil
}

// knownCluster returns what node.toml, the user data and the table of instance types say of the
// cluster.
func knownCluster(i *Instance, want ClusterRef) *Cluster {
	c := Cluster{Name: want.Name}
	u := i.UserCluster
	if u != nil && (want.Name == "" || u.Name == want.Name) {
		c = *u
	}
	if want.Stated && c.From == "" {
		c.From = "node.toml"
	}
	c.ENIs, c.IPv4PerENI = interfacesOf(i.Type)
	return &c
}

// complete says whether the known values of a cluster suffice for a join.
func (c *Cluster) complete() bool {
	return c.Server != "" && c.CA != nil && c.ServiceCIDR != ""
}
