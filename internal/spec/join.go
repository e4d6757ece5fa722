// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// checkCluster checks the name, which is part of signed requests. Source: CreateCluster in Amazon
// EKS's API reference.
func checkCluster(v string) (string, *trouble.Error) {
	if matches(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`, v) {
		return v, nil
	}
	return v, wrong(`write the name alone, at most 100 letters, digits, - and _, the first a letter or digit: "my-cluster"`, "%s is no name of a cluster", show(v))
}

// checkRegion checks the form only, since AWS adds regions. The name becomes part of a host name.
func checkRegion(v string) (string, *trouble.Error) {
	parts := strings.Split(v, "-")
	if domainLabel(v) && len(parts) >= 3 && strings.Trim(parts[len(parts)-1], "0123456789") == "" {
		return v, nil
	}
	return v, wrong(`write it as "eu-west-1", in lower case and without the letter of a zone`, "%s is no region", show(v))
}

// checkNetwork accepts a network as kube-apiserver's --service-cluster-ip-range does: no bits after
// the prefix.
func checkNetwork(v string) (string, *trouble.Error) {
	const fix = `write one network as "10.100.0.0/16"`
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil || p.Addr().Is4In6():
		return v, wrong(fix, "%s is no network", show(v))
	case p != p.Masked():
		return v, wrong("did you mean "+show(p.Masked().String())+"?", "%s has an address in the place of the network's", show(v))
	case p.Addr().BitLen()-p.Bits() < 4: // the cluster's DNS is the tenth address
		return v, wrong(fix, "%s has too few addresses for the services of a cluster", show(v))
	}
	return p.String(), nil
}

// checkPeer accepts an address or a DNS name: NVIDIA's IMEX accepts names since driver 570.158.01.
// Source: the feature gate IMEXDaemonsWithDNSNames in
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
func checkPeer(v string) (string, *trouble.Error) {
	if domain(v) && strings.ContainsFunc(v, func(c rune) bool { return c >= 'a' && c <= 'z' }) {
		return v, nil
	}
	if _, err := netip.ParseAddr(v); err != nil {
		return v, wrong(`write it as "10.0.0.11" or "gpu-1.example"`, "%s is neither an IP address nor a name in DNS", show(v))
	}
	return checkAddress(v)
}

func checkAddress(v string) (string, *trouble.Error) {
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		return v, wrong(`write it as "10.100.0.10"`, "%s is no IP address of a server", show(v))
	}
	return a.String(), nil
}

// checkNodeName allows 63 characters: ValidateNodeName in pkg/apis/core/validation of Kubernetes
// allows 253, but the name is also the value of kubelet's label kubernetes.io/hostname.
func checkNodeName(v string) (string, *trouble.Error) {
	switch low := strings.ToLower(v); {
	case len(v) > 63:
		return v, wrong("write a shorter name", "the name has %d characters; Kubernetes takes 63 as a label's value, which it becomes too", len(v))
	case domain(v):
		return v, nil
	case domain(low):
		return v, wrong("did you mean "+show(low)+"?", "the name of a node is in lower case")
	case domain(strings.ReplaceAll(low, "_", "-")):
		return v, wrong("did you mean "+show(strings.ReplaceAll(low, "_", "-"))+"?", "the name of a node has no _")
	}
	return v, wrong(`write lower-case letters, digits, - and dots: "gpu-1.example"`, "%s is no name for a node", show(v))
}

// join notes keys of [join] that the method does not read: their author expects an effect that they
// do not have. The keys for EKS are allowed with method none, for a machine of a pool that stays
// out of the cluster.
func (d *decoder) join(j Join) {
	if !d.passed("join.method") {
		return
	}
	const scripts = "the cloud's own scripts join the node"
	for _, k := range []struct {
		name string
		set  bool
		with []string // the methods that read the key
		why  string
	}{
		{"cluster", j.Cluster != "", []string{"eks", "auto"}, "only EKS is asked for a cluster by its name"},
		{"region", j.Region != "", []string{"eks", "auto"}, "only EKS is asked for a cluster by its name"},
		{"service_cidr", j.ServiceCIDR != "", []string{"eks", "auto"}, "only on EKS gpuadm tells kubelet where the cluster's DNS is"},
		{"server", j.Server != "", []string{"eks", "auto", "none"}, scripts},
		{"ca_file", j.CAFile != "", []string{"eks", "auto", "none"}, scripts},
		{"cluster_dns", len(j.ClusterDNS) > 0, []string{"eks", "auto", "none"}, scripts},
		{"node_name", j.NodeName != "", []string{"eks", "auto", "none"}, scripts},
		{"gate", j.Gate == "open", append(platform.Gated(), "auto"), "only where a cloud's scripts start kubelet it is held back"},
	} {
		key := "join." + k.name
		if !k.set || slices.Contains(k.with, j.Method) || !d.passed(key) {
			continue
		}
		d.refuse(key, "take it out, or write as the method "+choice(k.with), "%s means nothing with method = %s: %s", k.name, show(j.Method), k.why)
	}
}
