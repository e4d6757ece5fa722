// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"encoding/json"
	"net/netip"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// note is the content of the file that a join keeps.
type note struct {
	For         string   `json:"for"` // the instance's id: a node's image may run on other machines
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
	Tags      map[string]string `json:"tags,omitempty"` // those of a NodePool, which decide the startup taint
}

// Keep returns the content of ClusterRef.Kept: the facts, and the machine that they are for. It has
// no secrets.
func (c *Cluster) Keep(i *Instance, region string) ([]byte, error) {
	tags := map[string]string{}
	for key, value := range i.Tags {
		if platform.IsNodePoolTag(key) {
			tags[key] = value
		}
	}

	data, err := json.MarshalIndent(note{
		For:         i.ID,
		Name:        c.Name,
		Region:      cmp.Or(region, i.Region),
		Server:      c.Server,
		CA:          c.CA,
		ServiceCIDR: c.ServiceCIDR,
		DNS:         c.DNS,
		Version:     c.Version,
		PrivateDNS:  c.PrivateDNS,
		ENIs:        c.ENIs,
		IPv4PerENI:  c.IPv4PerENI,

		Type:      i.Type,
		Zone:      i.Zone,
		PrivateIP: i.PrivateIP,
		IPv6:      i.IPv6,
		Tags:      tags,
	}, "", "\t")
	return append(data, '\n'), err
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
	if c == nil || !n.isFor(of.InstanceID, want) || !n.describesInstance() {
		return nil, nil
	}
	return &Instance{
		ID:        n.For,
		Type:      n.Type,
		Region:    n.Region,
		Zone:      n.Zone,
		PrivateIP: n.PrivateIP,
		IPv6:      n.IPv6,
		Tags:      n.Tags,
	}, c
}

// keptCluster reads the file of a join of this machine to this cluster; nil if there is none, or if
// it is of another machine or cluster.
func keptCluster(v host.View, i *Instance, want ClusterRef) *Cluster {
	if want.Kept == "" {
		return nil
	}
	data, err := v.ReadFile(want.Kept)
	if err != nil {
		return nil
	}

	c, n := readNote(data)
	want.Region = cmp.Or(want.Region, i.Region)
	if c == nil || !n.isFor(i.ID, want) {
		return nil
	}
	u := i.UserCluster
	if want.Name == "" && u != nil && u.Name != c.Name {
		return nil
	}
	return c
}

// isFor says whether a note is of this machine and of the wanted cluster.
func (n note) isFor(id string, want ClusterRef) bool {
	sameName := want.Name == "" || want.Name == n.Name
	sameRegion := want.Region == "" || want.Region == n.Region
	nodeNamed := want.NodeName != "" || n.PrivateDNS != ""
	return n.For == id && sameName && sameRegion && nodeNamed
}

// describesInstance says whether a note has what the metadata service would say of the machine.
func (n note) describesInstance() bool {
	return n.Type != "" && n.Zone != "" && (n.PrivateIP != "" || n.IPv6 != "")
}

// readNote reads Keep's file; nil if any value in it is not valid.
func readNote(data []byte) (*Cluster, note) {
	var n note
	if json.Unmarshal(data, &n) != nil || !n.valid() {
		return nil, n
	}
	services, err := netip.ParsePrefix(n.ServiceCIDR)
	if err != nil {
		return nil, n
	}

	return &Cluster{
		Name:        n.Name,
		Server:      n.Server,
		CA:          n.CA,
		ServiceCIDR: n.ServiceCIDR,
		DNS:         ClusterDNS(services),
		Version:     n.Version,
		From:        "kept",
		PrivateDNS:  n.PrivateDNS,
		ENIs:        n.ENIs,
		IPv4PerENI:  n.IPv4PerENI,
	}, n
}

// valid checks the values of a note, but for the services' network: an operator may have edited the
// file.
func (n note) valid() bool {
	for _, word := range []string{n.Version, n.PrivateDNS, n.Type, n.Zone} {
		if word != "" && !plain(word) {
			return false
		}
	}

	validCluster := clusterName(n.Name) && server(n.Server) && certificate(n.CA)
	validAddresses := n.PrivateIP == address(n.PrivateIP) && n.IPv6 == address(n.IPv6)
	return validCluster && validAddresses && min(n.ENIs, n.IPv4PerENI) >= 0
}
