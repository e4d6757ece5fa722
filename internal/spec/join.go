// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// checkCluster checks the name, which is part of signed requests.
// Source: CreateCluster in Amazon EKS's API reference.
func checkCluster(v string) (string, *trouble.Error) {
	if matches(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`, v) {
		return v, nil
	}
	const fix = `write the name alone, at most 100 letters, digits, - and _, the first a letter or digit: "my-cluster"`
	return v, wrong(fix, "%s is not the name of a cluster", show(v))
}

// checkRegion checks the form only, since AWS adds regions. The name becomes part of a host name.
func checkRegion(v string) (string, *trouble.Error) {
	parts := strings.Split(v, "-")
	endsInNumber := strings.Trim(parts[len(parts)-1], "0123456789") == ""
	if domainLabel(v) && len(parts) >= 3 && endsInNumber {
		return v, nil
	}
	const fix = `write it as "eu-west-1", in lower case and without the letter of a zone`
	return v, wrong(fix, "%s is not a region", show(v))
}

// checkNetwork accepts a network as kube-apiserver's --service-cluster-ip-range does: no bits after
// the prefix.
func checkNetwork(v string) (string, *trouble.Error) {
	const fix = `write one network as "10.100.0.0/16"`
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil || p.Addr().Is4In6():
		return v, wrong(fix, "%s is not a network", show(v))
	case p != p.Masked():
		meant := "did you mean " + show(p.Masked().String()) + "?"
		return v, wrong(meant, "%s has an address in the place of the network's", show(v))
	case p.Addr().BitLen()-p.Bits() < 4: // the cluster's DNS is the tenth address
		return v, wrong(fix, "%s has too few addresses for the services of a cluster", show(v))
	}

	return p.String(), nil
}

// checkPeer accepts an address or a DNS name: NVIDIA's IMEX accepts names since driver 570.158.01.
// Source: the feature gate IMEXDaemonsWithDNSNames in
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
func checkPeer(v string) (string, *trouble.Error) {
	isLetter := func(c rune) bool { return c >= 'a' && c <= 'z' }
	if domain(v) && strings.ContainsFunc(v, isLetter) {
		return v, nil
	}
	if _, err := netip.ParseAddr(v); err != nil {
		const fix = `write it as "10.0.0.11" or "gpu-1.example"`
		return v, wrong(fix, "%s is neither an IP address nor a name in DNS", show(v))
	}
	return checkAddress(v)
}

func checkAddress(v string) (string, *trouble.Error) {
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		return v, wrong(`write it as "10.100.0.10"`, "%s is not an IP address of a server", show(v))
	}
	return a.String(), nil
}

// checkNodeName allows 63 characters: ValidateNodeName in pkg/apis/core/validation of Kubernetes
// allows 253, but the name is also the value of kubelet's label kubernetes.io/hostname.
func checkNodeName(v string) (string, *trouble.Error) {
	lower := strings.ToLower(v)
	withDashes := strings.ReplaceAll(lower, "_", "-")
	switch {
	case len(v) > 63:
		const text = "the name has %d characters; Kubernetes takes 63 as a label's value, which it becomes too"
		return v, wrong("write a shorter name", text, len(v))
	case domain(v):
		return v, nil
	case domain(lower):
		return v, wrong("did you mean "+show(lower)+"?", "the name of a node is in lower case")
	case domain(withDashes):
		return v, wrong("did you mean "+show(withDashes)+"?", "the name of a node has no _")
	}

	const fix = `write lower-case letters, digits, - and dots: "gpu-1.example"`
	return v, wrong(fix, "%s is not a name for a node", show(v))
}

// joinKey is a key of [join] that only some methods read.
type joinKey struct {
	name    string
	set     bool
	methods []string // that read the key
	why     string   // the others do not
}

func joinKeys(j Join) []joinKey {
	var own, titles []string
	for _, p := range platform.Own() {
		own = append(own, p.Join.Method)
		titles = append(titles, p.Title)
	}

	clouds := strings.Join(titles, " or ")
	byName := "only " + clouds + " is asked for a cluster by its name"
	tellsDNS := "only on " + clouds + " gpuadm tells kubelet where the cluster's DNS is"
	const (
		scripts   = "the cloud's own scripts join the node"
		holdsBack = "this cloud's scripts start kubelet without asking the gate"
	)
	// Most keys of gpuadm's own join are allowed with method none, for a machine of a pool that
	// stays out of the cluster.
	own = append(own, "auto")
	ownOrNone := append(slices.Clone(own), "none")
	gated := append(platform.Gated(), "auto", "none") // after apply --install kubelet asks it on any machine
	return []joinKey{
		{"cluster", j.Cluster != "", own, byName},
		{"region", j.Region != "", own, byName},
		{"service_cidr", j.ServiceCIDR != "", own, tellsDNS},
		{"server", j.Server != "", ownOrNone, scripts},
		{"ca_file", j.CAFile != "", ownOrNone, scripts},
		{"cluster_dns", len(j.ClusterDNS) > 0, ownOrNone, scripts},
		{"node_name", j.NodeName != "", ownOrNone, scripts},
		{"gate", j.Gate == "open", gated, holdsBack},
	}
}

// join notes keys of [join] that the method does not read: their author expects an effect that they
// do not have.
func (d *decoder) join(j Join) {
	if !d.passed("join.method") {
		return
	}

	for _, k := range joinKeys(j) {
		key := "join." + k.name
		if !k.set || slices.Contains(k.methods, j.Method) || !d.passed(key) {
			continue
		}
		d.refuse(key,
			"take it out, or write as the method "+choice(k.methods),
			"%s means nothing with method = %s: %s", k.name, show(j.Method), k.why)
	}
}
