// SPDX-License-Identifier: Apache-2.0

// Package eks joins EKS: by nodeadm on AWS's own images, by nodeadm for hybrid nodes, or with a
// kubelet of gpuadm's own.
package eks

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Wants joins a machine in EC2 to its EKS cluster. If EKS's own tools are on the machine, they join
// it, and gpuadm configures the labels and taints that the node registers with; else gpuadm sets up
// kubelet itself.
func Wants(session *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	switch f.Cloud.Managed {
	case "eks":
		return nodeadm(s, f)
	case "eks-hybrid":
		return hybrid(s, f)
	}
	switch {
	case !f.Live:
		return []converge.Want{Deferred("which cluster of EKS to join", host.FirstBoot, "the machine learns it when it boots")}, nil
	case f.Cloud.Name != "aws":
		return nil, &trouble.Error{
			What:    "cannot join EKS: the machine is not in EC2, where it would get its credentials",
			Because: []string{"neither the firmware nor a file says that it is"},
			Try: []string{
				"a machine elsewhere joins as a hybrid node, by AWS's nodeadm: https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-overview.html",
				"then run gpuadm again: it goes on where nodeadm has set up kubelet",
			},
		}
	case method.EKSOthers(f):
		return nil, nil
	}
	n, err := newOwnNode(s, f)
	if err != nil {
		return nil, err
	}
	return n.wants(session, s, f)
}

// Deferred is a want that waits for an event.
func Deferred(what string, later host.Later, why string) converge.Want {
	return things.Check(what, func(context.Context, host.View) (string, error) {
		return "", later
	}, why)
}

// ownNode has the settings of a kubelet that joins EKS.
type ownNode struct {
	cluster instance.Cluster // values of node.toml take precedence over those that EKS reports
	machine instance.Instance
	region  string
	name    string // of the node, which must equal the name that EKS derives from the machine's role session
	ip      string // of the address family of the cluster's services
}

func newOwnNode(s spec.Spec, f facts.Facts) (*ownNode, error) {
	for _, e := range []*trouble.Error{f.NoInstance, f.NoCluster} {
		if e != nil {
			return nil, e
		}
	}
	if f.Instance == nil || f.Cluster == nil {
		return nil, &trouble.Error{
			What: "cannot join EKS: no service says which machine and which cluster this is",
			Try:  []string{trouble.Command("facts") + ", which says who was asked"},
		}
	}

	n := &ownNode{
		cluster: *f.Cluster,
		machine: *f.Instance,
		region:  cmp.Or(s.Join.Region, f.Instance.Region),
	}
	c := &n.cluster
	c.Name = cmp.Or(s.Join.Cluster, c.Name)
	c.Server = cmp.Or(s.Join.Server, c.Server)
	c.ServiceCIDR = cmp.Or(s.Join.ServiceCIDR, c.ServiceCIDR)
	if file := s.Join.CAFile; file != "" {
		c.CA = f.Files[file]
		if c.CA == nil {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot read %s: it is not there", file),
				Try:  []string{"write the cluster's CA certificate there, or drop ca_file from [join]: EKS tells it"},
			}
		}
	}
	n.name = cmp.Or(s.Join.NodeName, c.PrivateDNS)

	services, err := netip.ParsePrefix(c.ServiceCIDR)
	switch {
	case c.Server == "" || c.CA == nil || err != nil:
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot join EKS: of the cluster %s not all is known that a node must know", c.Name),
			Try:  []string{"write server, ca_file and service_cidr in [join], or none of them: then EKS is asked"},
		}
	case n.machine.ID == "" || n.machine.Zone == "":
		return nil, &trouble.Error{
			What: "cannot join EKS: EC2 does not tell the machine's id and zone",
			Try:  []string{trouble.Command("facts")},
		}
	}
	if err := needsECR(f); err != nil {
		return nil, err
	}

	c.DNS = instance.ClusterDNS(services)
	if len(s.Join.ClusterDNS) > 0 {
		c.DNS = s.Join.ClusterDNS
	}
	n.ip = n.machine.PrivateIP
	if services.Addr().Is6() {
		n.ip = n.machine.IPv6
	}

	if n.ip == "" {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot join EKS: the cluster's services are at %s, and EC2 knows no address of that family for this machine", services),
			Try:  []string{"give the machine's subnet addresses of that family, and start it again"},
		}
	}
	return n, method.NameFits(n.name, s)
}

// wants returns all files of the join, in the order of their use.
func (n *ownNode) wants(session *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	k := kubelet.Own{Env: kubelet.ProxyEnv(s), Config: n.config(f), Flags: n.flags(f)}
	own, err := node.OwnKubelet(k, s, f)
	if err != nil {
		return nil, err
	}
	kept, err := n.cluster.Keep(&n.machine, n.region)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}

	var wants []converge.Want
	if !f.Kubelet.Joined {
		wants = append(wants, n.accepted(method.Via(s)))
	}
	for _, folder := range []string{path.Dir(kubelet.ClusterCA), path.Dir(method.EKSKept)} {
		wants = append(wants, things.Folders(folder, "holds the settings of a node of EKS")...)
	}
	wants = append(wants,
		things.Exact(kubelet.ClusterCA, n.cluster.CA, 0o644, "the CA by which kubelet verifies the API server"),
		n.login(),
		things.Exact(method.EKSKept, kept, 0o644, "a converged node asks neither EC2 nor EKS again"),
	)
	wants = append(wants, ecr(f)...)
	wants = append(wants, own...)
	wants = node.Unique(wants)
	if !f.Kubelet.Joined {
		wants = append(wants, node.WaitRegistered(session, s, f, n.name, kubelet.Kubeconfig))
	}
	return wants, nil
}

// Notes say what EKS's own tools do, where they are on the machine.
func Notes(s spec.Spec, f facts.Facts) []string {
	if f.Cloud.Managed == "" {
		return podsNote(s, f)
	}
	labels, taints, err := node.Registration(s, f)
	if err != nil {
		return nil
	}
	if f.Cloud.Managed == "eks-hybrid" {
		return hybridNotes(f, kubeletFlagsSay(labels, taints))
	}

	const joins = "nodeadm joins this machine (%s) and rewrites kubelet's and containerd's files at each boot; gpuadm tells it by %s"
	notes := []string{fmt.Sprintf(joins, f.Cloud.ManagedWhy, method.NodeadmDropIn)}
	if f.Files[node.BootUnit] == nil {
		const notHeld = "gpuadm.service is not installed, so nothing holds nodeadm back until the GPUs are ready: "
		notes = append(notes, notHeld+trouble.Command("apply --install"))
	}
	written := bytes.Contains(f.Files[method.NodeadmDropIn], []byte(method.NodeadmKind))
	if f.Kubelet.Joined && !written {
		notes = append(notes, "the node has joined already: nodeadm reads its settings at its next run, at the next boot")
	}
	return notes
}

// hybridNotes say what nodeadm for hybrid nodes does, and which kubelet flags it must be given.
func hybridNotes(f facts.Facts, flags string) []string {
	const joins = "nodeadm of EKS Hybrid Nodes joins this machine (%s): it gets the credentials, writes kubelet's and containerd's files and checks clock, network and rights; gpuadm does every stage but that"
	notes := []string{fmt.Sprintf(joins, f.Cloud.ManagedWhy)}
	if flags != "" {
		notes = append(notes, "give nodeadm's NodeConfig, in spec.kubelet.flags: "+flags)
	}
	return notes
}

// podsNote warns if the number of pods is a guess.
func podsNote(s spec.Spec, f facts.Facts) []string {
	if !method.EKSOwn(s, f) || f.Cluster == nil || f.Instance == nil {
		return nil
	}
	stated := bytes.Contains(f.Files[s.Join.KubeletConfig], []byte("maxPods"))
	if stated || f.Cluster.ENIs > 0 {
		return nil
	}

	const text = "kubelet takes %d pods at most, since no source says how many addresses a %s has: the instance's role may lack ec2:DescribeInstanceTypes; maxPods in the file that kubelet_config in [join] names says how many"
	return []string{fmt.Sprintf(text, maxPods(*f.Cluster), f.Instance.Type)}
}
