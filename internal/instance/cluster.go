// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// apiPatience limits the calls to a cloud's API. After it gpuadm exits with "run it again", so that
// the boot unit shows why it waits.
const apiPatience = time.Minute

// AskCluster returns the machine's EKS cluster: from the user data, else from the kept file, else
// from EKS's own API. That API throttles, and refused some of 400 machines that started together:
// so it comes last, and a machine that has joined never asks it again. Errors are *trouble.Error,
// or a host.Later in a root folder.
// Source: https://github.com/awslabs/amazon-eks-ami/issues/803
func AskCluster(ctx context.Context, v host.View, i *Instance, want ClusterRef) (*Cluster, error) {
	if c := kept(v, i, want); c != nil {
		return c, nil
	}
	c := &Cluster{Name: want.Name}
	if u := i.UserCluster; u != nil && (want.Name == "" || u.Name == want.Name) {
		copied := *u
		c = &copied
	}
	if c.Name == "" {
		return nil, &trouble.Error{
			What:    "cannot find out which cluster to join: neither node.toml nor the user data names it",
			Because: []string{"user data names it in a NodeConfig of node.eks.aws"},
			Try:     []string{"[join] cluster = \"NAME\""},
		}
	}
	enough := want.Stated || c.complete()
	if want.Stated && c.From == "" {
		c.From = "node.toml"
	}
	c.ENIs, c.IPv4PerENI = interfacesOf(i.Type)
	if want.NodeName != "" && enough {
		return c, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, apiPatience, &trouble.Error{What: "cannot ask AWS about the cluster: it took longer than " + apiPatience.String(), Passing: true})
	defer cancel()
	a, err := openAWS(ctx, v, i, want)
	if err != nil {
		return nil, err
	}
	if !enough {
		if err := a.describeCluster(ctx, c); err != nil {
			return nil, err
		}
	}
	if want.NodeName == "" {
		if err := a.describeInstance(ctx, i, c); err != nil {
			return nil, err
		}
	}
	if c.ENIs == 0 {
		a.describeType(ctx, i, c)
	}
	return c, nil
}

// complete says whether the known values suffice for a join.
func (c *Cluster) complete() bool {
	return c.Name != "" && c.Server != "" && c.CA != nil && c.ServiceCIDR != ""
}

// note is the content of the file that a join keeps.
type note struct {
	For         string   `json:"for"` // the instance's id: an image of a node may run on other machines, in other clusters
	Name        string   `json:"name"`
	Region      string   `json:"region"`
	Server      string   `json:"server"`
	CA          []byte   `json:"ca"`
	ServiceCIDR string   `json:"serviceCIDR"`
	DNS         []string `json:"dns"`
	Version     string   `json:"version,omitempty"`
	PrivateDNS  string   `json:"privateDNS,omitempty"`
	ENIs        int      `json:"enis,omitempty"`
	IPv4PerENI  int      `json:"ipv4PerENI,omitempty"`

	Type      string            `json:"type,omitempty"`
	Zone      string            `json:"zone,omitempty"`
	PrivateIP string            `json:"privateIP,omitempty"`
	IPv6      string            `json:"ipv6,omitempty"`
	Karpenter map[string]string `json:"karpenter,omitempty"` // its tags, which decide the startup taint
}

// Kept reads the file ClusterRef.Kept of a join of this machine to this cluster: gpuadm then asks
// no service. nil if there is none, or if the firmware does not name this machine.
func Kept(v host.View, of Cloud, want ClusterRef) (*Instance, *Cluster) {
	if of.InstanceID == "" || want.Kept == "" {
		return nil, nil
	}
	data, err := v.ReadFile(want.Kept)
	if err != nil {
		return nil, nil
	}
	c, n := readNote(data)
	switch {
	case c == nil || n.For != of.InstanceID || n.Type == "" || n.Zone == "" || n.PrivateIP == "" && n.IPv6 == "",
		want.Region != "" && want.Region != n.Region, want.Name != "" && want.Name != c.Name,
		want.NodeName == "" && c.PrivateDNS == "":
		return nil, nil
	}
	return &Instance{
		ID: n.For, Type: n.Type, Region: n.Region, Zone: n.Zone, PrivateIP: n.PrivateIP, IPv6: n.IPv6, Tags: n.Karpenter,
	}, c
}

// Keep returns the content of ClusterRef.Kept: the facts, and the machine that they are for. It has
// no secrets.
func (c *Cluster) Keep(i *Instance, region string) ([]byte, error) {
	if region == "" {
		region = i.Region
	}
	karpenter := map[string]string{}
	for key, value := range i.Tags {
		if strings.HasPrefix(key, "karpenter.sh/") {
			karpenter[key] = value
		}
	}
	data, err := json.MarshalIndent(note{
		For: i.ID, Name: c.Name, Region: region, Server: c.Server, CA: c.CA, ServiceCIDR: c.ServiceCIDR, DNS: c.DNS,
		Version: c.Version, PrivateDNS: c.PrivateDNS, ENIs: c.ENIs, IPv4PerENI: c.IPv4PerENI,
		Type: i.Type, Zone: i.Zone, PrivateIP: i.PrivateIP, IPv6: i.IPv6, Karpenter: karpenter,
	}, "", "\t")
	return append(data, '\n'), err
}

// kept reads the file of a join of this machine to this cluster; nil if there is none, or if it
// does not fit.
func kept(v host.View, i *Instance, want ClusterRef) *Cluster {
	if want.Kept == "" {
		return nil
	}
	data, err := v.ReadFile(want.Kept)
	if err != nil {
		return nil
	}
	c, of := readNote(data)
	region := want.Region
	if region == "" {
		region = i.Region
	}
	switch u := i.UserCluster; {
	case c == nil || of.For != i.ID || of.Region != region,
		want.Name != "" && want.Name != c.Name,
		want.Name == "" && u != nil && u.Name != c.Name,
		want.NodeName == "" && c.PrivateDNS == "":
		return nil
	}
	return c
}

// readNote reads Keep's file; nil if any value in it is not valid.
func readNote(data []byte) (*Cluster, note) {
	var n note
	if json.Unmarshal(data, &n) != nil || !clusterName(n.Name) || !server(n.Server) || !certificate(n.CA) {
		return nil, n
	}
	cidr, err := netip.ParsePrefix(n.ServiceCIDR)
	if err != nil || n.ENIs < 0 || n.IPv4PerENI < 0 || n.PrivateDNS != "" && !plain(n.PrivateDNS) || n.Version != "" && !plain(n.Version) ||
		n.Type != "" && !plain(n.Type) || n.Zone != "" && !plain(n.Zone) || n.PrivateIP != address([]string{n.PrivateIP}) || n.IPv6 != address([]string{n.IPv6}) {
		return nil, n
	}
	return &Cluster{
		Name: n.Name, Server: n.Server, CA: n.CA, ServiceCIDR: n.ServiceCIDR, DNS: ClusterDNS(cidr), Version: n.Version, From: "kept",
		PrivateDNS: n.PrivateDNS, ENIs: n.ENIs, IPv4PerENI: n.IPv4PerENI,
	}, n
}
