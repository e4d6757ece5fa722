// SPDX-License-Identifier: Apache-2.0

// Package eks joins EKS: by nodeadm on AWS's own images, by nodeadm for hybrid nodes, or with a
// kubelet of gpuadm's own.
package eks

import (
	"cmp"
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
		return settings(s, f)
	case "eks-hybrid":
		return hybrid(s, f)
	}

	switch {
	case !f.Live:
		const why = "the machine learns it when it boots"
		cluster := things.Deferred("which cluster of EKS to join", host.FirstBoot, why)
		return []converge.Want{cluster}, nil
	case f.Cloud.Name != "aws":
		return nil, &trouble.Error{
			What:    "cannot join EKS: the machine is not in EC2, where it would get its credentials",
			Because: []string{"neither the firmware nor a file says that it is"},
			Try: []string{
				"a machine elsewhere joins as a hybrid node, by AWS's nodeadm: https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-overview.html",
				"then run gpuadm again: it goes on where nodeadm has set up kubelet",
			},
		}
	case method.HasOtherKubelet(f):
		return nil, nil
	}

	n, err := newOwnNode(s, f)
	if err != nil {
		return nil, err
	}
	return n.wants(session, s, f)
}

// ownNode has the settings of a kubelet that joins EKS.
type ownNode struct {
	cluster instance.Cluster // values of node.toml take precedence over those that EKS reports
	machine instance.Instance
	region  string
	name    string // of the node, which must equal the name that EKS derives from the machine's role session
	ip      string // of the address family of the cluster's services
}

// newOwnNode collects the settings from node.toml and from what EC2 and EKS report.
func newOwnNode(s spec.Spec, f facts.Facts) (*ownNode, error) {
	for _, unanswered := range []*trouble.Error{f.NoInstance, f.NoCluster} {
		if unanswered != nil {
			return nil, unanswered
		}
	}

	if f.Instance == nil || f.Cluster == nil {
		return nil, &trouble.Error{
			What: "cannot join EKS: no service says which machine and which cluster this is",
			Try:  []string{trouble.Command("facts") + ", which says who was asked"},
		}
	}

	cluster, err := clusterOf(s, f)
	if err != nil {
		return nil, err
	}
	n := &ownNode{
		cluster: cluster,
		machine: *f.Instance,
		region:  cmp.Or(s.Join.Region, f.Instance.Region),
		name:    cmp.Or(s.Join.NodeName, cluster.PrivateDNS),
	}
	services, err := n.checkKnown()
	if err != nil {
		return nil, err
	}
	if err := needsECR(f); err != nil {
		return nil, err
	}

	n.cluster.DNS = instance.ClusterDNS(services)
	if len(s.Join.ClusterDNS) > 0 {
		n.cluster.DNS = s.Join.ClusterDNS
	}

	n.ip = n.machine.PrivateIP
	if services.Addr().Is6() {
		n.ip = n.machine.IPv6
	}
	if n.ip == "" {
		const text = "cannot join EKS: the cluster's services are at %s, and EC2 knows no address of that family for this machine"
		return nil, &trouble.Error{
			What: fmt.Sprintf(text, services),
			Try:  []string{"give the machine's subnet addresses of that family, and start it again"},
		}
	}

	return n, method.NameFits(n.name, s)
}

// clusterOf returns the cluster as node.toml and EKS describe it; values of node.toml win.
func clusterOf(s spec.Spec, f facts.Facts) (instance.Cluster, error) {
	c := *f.Cluster
	c.Name = cmp.Or(s.Join.Cluster, c.Name)
	c.Server = cmp.Or(s.Join.Server, c.Server)
	c.ServiceCIDR = cmp.Or(s.Join.ServiceCIDR, c.ServiceCIDR)
	file := s.Join.CAFile
	if file == "" {
		return c, nil
	}

	c.CA = f.Files[file]
	if c.CA == nil {
		return c, &trouble.Error{
			What: fmt.Sprintf("cannot read %s: it is not there", file),
			Try:  []string{"write the cluster's CA certificate there, or drop ca_file from [join]: then gpuadm asks EKS for it"},
			Keys: []string{"join.ca_file"},
		}
	}

	return c, nil
}

// checkKnown returns the network of the cluster's services. It fails if a value is missing without
// which kubelet cannot join.
func (n *ownNode) checkKnown() (services netip.Prefix, err error) {
	services, err = netip.ParsePrefix(n.cluster.ServiceCIDR)
	switch {
	case n.cluster.Server == "" || n.cluster.CA == nil || err != nil:
		return services, &trouble.Error{
			What: fmt.Sprintf("cannot join EKS: the server, the CA or the service network of the cluster %s is not known", n.cluster.Name),
			Try:  []string{"write all of server, ca_file and service_cidr in [join], or none of them: then gpuadm asks EKS"},
		}
	case n.machine.ID == "" || n.machine.Zone == "":
		return services, &trouble.Error{
			What: "cannot join EKS: EC2 does not tell the machine's id and zone",
			Try:  []string{trouble.Command("facts")},
		}
	}

	return services, nil
}

// wants returns all files of the join, in the order of their use.
func (n *ownNode) wants(session *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	k := kubelet.Own{
		Config: n.config(f),
		Flags:  n.flags(f),
		Env:    kubelet.ProxyEnv(s),
	}
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
	for _, folder := range []string{path.Dir(kubelet.ClusterCA), path.Dir(method.Kept)} {
		wants = append(wants, things.Folders(folder, "holds the settings of a node of EKS")...)
	}
	wants = append(wants,
		things.Exact(kubelet.ClusterCA, n.cluster.CA, 0o644, "the CA by which kubelet verifies the API server"),
		n.login(),
		things.Exact(method.Kept, kept, 0o644, "a converged node asks neither EC2 nor EKS again"),
	)
	wants = append(wants, ecr(f)...)
	wants = append(wants, own...)
	wants = unique(wants)
	if !f.Kubelet.Joined {
		wants = append(wants, node.WaitRegistered(session, s, f, n.name, kubelet.Kubeconfig))
	}
	return wants, nil
}

// unique leaves out folders that are wanted twice.
func unique(wants []converge.Want) []converge.Want {
	var list []converge.Want
	seen := map[string]bool{}
	for _, w := range wants {
		id := w.Ref().String()
		if !seen[id] {
			list = append(list, w)
		}
		seen[id] = true
	}

	return list
}
