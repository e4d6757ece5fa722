// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// RestrictedLabel says whether Kubernetes forbids a kubelet to set a label on its own node: kubelet
// does not start with it in --node-labels, and the NodeRestriction admission refuses it. Only
// another identity can set it, such as that of [node] kubeconfig.
//
// Source: kubernetes, pkg/kubelet/apis/well_known_labels.go (staging: k8s.io/kubelet/pkg/apis).
func RestrictedLabel(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	under := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	if !found || !under("kubernetes.io") && !under("k8s.io") {
		return false
	}
	if under("kubelet.kubernetes.io") || under("node.kubernetes.io") {
		return false
	}
	return !slices.Contains([]string{
		"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	}, key)
}

// There are many labels, and a compilation for each would cost more than reading the file.
var (
	labelName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`) })
	dnsLabel  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) })
)

// IsLabelKey says whether Kubernetes accepts a text as the key of a label or a taint.
// Source: kubernetes, staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go.
func IsLabelKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return key != "" && IsLabelValue(key)
	}
	return name != "" && IsLabelValue(name) && domain(prefix)
}

// IsLabelValue says whether Kubernetes accepts a text as the value of a label or a taint.
func IsLabelValue(value string) bool {
	return value == "" || len(value) <= 63 && labelName().MatchString(value)
}

// domain says whether a text is a DNS subdomain in lower case.
func domain(text string) bool {
	bad := func(label string) bool { return !dnsLabel().MatchString(label) }
	return len(text) <= 253 && !slices.ContainsFunc(strings.Split(text, "."), bad)
}

func domainLabel(text string) bool { return len(text) <= 63 && dnsLabel().MatchString(text) }

// checkLabelKey checks the key of a label or a taint.
func checkLabelKey(key string) *trouble.Error {
	if IsLabelKey(key) {
		return nil
	}
	return wrong(`write it as "example.com/name": a domain in lower case, and at most 63 letters and digits, with -, _ and . inside`,
		"Kubernetes refuses the key %s", show(key))
}

// checkLabelValue checks the value of a label or a taint. Its error does not quote the value.
func checkLabelValue(key, value string) *trouble.Error {
	if IsLabelValue(value) {
		return nil
	}
	return wrong("write at most 63 letters and digits, with -, _ and . inside", "Kubernetes refuses the value of %s", show(key))
}

// checkLabel says whether the fault is in the value, and what it is.
func checkLabel(key, value string) (bool, *trouble.Error) {
	if f := checkLabelKey(key); f != nil {
		return false, f
	}
	return true, checkLabelValue(key, value)
}

func effects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// parseTaint reads "key=value:Effect" or "key:Effect".
func parseTaint(text string) (Taint, *trouble.Error) {
	const form = `write it as "key=value:NoSchedule"`
	if strings.ContainsAny(text, "@") || strings.Contains(text, "://") { // no message quotes a URL or a part of it
		return Taint{}, wrong(form, "this is no taint")
	}
	front, effect, found := strings.Cut(text, ":")
	key, value, _ := strings.Cut(front, "=")
	t := Taint{Key: key, Value: value, Effect: effect}
	if f := checkLabelKey(key); f != nil {
		return t, f
	}
	if f := checkLabelValue(key, value); f != nil {
		return t, f
	}
	if !found || effect == "" {
		return t, wrong(form+`, or "key-" to remove one`, "the taint %s has no effect", show(key))
	}
	if !slices.Contains(effects(), effect) {
		fix := "write " + choice(effects())
		if near := nearest.Of(effect, effects()); near != "" {
			fix = "did you mean " + show(near) + "?"
		}
		return t, wrong(fix, "the taint %s cannot have the effect %s", show(key), show(effect))
	}
	return t, nil
}

// taints merges the taints of a file into those of earlier ones. Two taints with the same key and
// effect are the same taint. As with kubectl, "key:Effect-" removes one taint and "key-" all with
// that key; "key:Effect" and "key=:Effect" mean a taint without a value.
func (d *decoder) taints(r row, v *value, to *[]Taint) {
	if !d.is(r, v, listKind) {
		return
	}
	var given []Taint
	for _, item := range v.items {
		if item.kind != stringKind {
			d.src.addf(item.at, `write it as "key=value:NoSchedule"`, "a taint must be a string, not %s", item.kind)
			continue
		}
		text, remove := strings.CutSuffix(item.text, "-")
		if key, effect, found := strings.Cut(text, ":"); remove && !strings.Contains(key, "=") {
			if f := checkLabelKey(key); f != nil {
				d.src.add(item.at, f)
			} else if found && !slices.Contains(effects(), effect) {
				d.src.addf(item.at, "write "+choice(effects()), "no taint has the effect %s", show(effect))
			} else {
				*to = slices.DeleteFunc(*to, func(t Taint) bool { return t.Key == key && (!found || t.Effect == effect) })
			}
			continue
		}
		t, f := parseTaint(item.text)
		same := func(o Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if f == nil && slices.ContainsFunc(given, same) {
			f = wrong("keep one of the two", "the taint %s with the effect %s is given twice", show(t.Key), t.Effect)
		}
		if f != nil {
			d.src.add(item.at, f)
			continue
		}
		given = append(given, t)
		*to = append(slices.DeleteFunc(*to, same), t)
	}
}

func checkStartupTaint(v string) (string, *trouble.Error) {
	if v == "auto" || v == "none" {
		return v, nil
	}
	t, f := parseTaint(v)
	if f != nil {
		if !strings.ContainsAny(v, ":=/") {
			return v, wrong(`write "auto", "none", or a taint such as "example.com/starting:NoSchedule"`, "%s is no taint", show(v))
		}
		return v, f
	}
	return t.String(), nil
}

// The checks of [join].

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
	if !d.ok("join.method") {
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
		{"gate", j.Gate == "open", []string{"eks", "aks", "auto"}, "only where a cloud's scripts start kubelet it is held back"},
	} {
		key := "join." + k.name
		if !k.set || slices.Contains(k.with, j.Method) || !d.ok(key) {
			continue
		}
		d.blame(key, "take it out, or write as the method "+choice(k.with), "%s means nothing with method = %s: %s", k.name, show(j.Method), k.why)
	}
}
