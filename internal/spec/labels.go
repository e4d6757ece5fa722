// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// RestrictedLabel says whether Kubernetes forbids a kubelet to set a label on its own node: kubelet
// does not start with it in --node-labels, and the NodeRestriction admission refuses it. Only
// another identity can set it, such as that of [node] kubeconfig.
//
// Source: kubernetes, pkg/kubelet/apis/well_known_labels.go (staging: k8s.io/kubelet/pkg/apis).
func RestrictedLabel(key string) bool {
	prefix, _, hasPrefix := strings.Cut(key, "/")
	under := func(domain string) bool {
		return prefix == domain || strings.HasSuffix(prefix, "."+domain)
	}
	ofKubernetes := hasPrefix && (under("kubernetes.io") || under("k8s.io"))
	ofKubelet := under("kubelet.kubernetes.io") || under("node.kubernetes.io")
	if !ofKubernetes || ofKubelet {
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
	labelName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
	})
	dnsLabel = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	})
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

func domainLabel(text string) bool {
	return len(text) <= 63 && dnsLabel().MatchString(text)
}

// checkLabelKey checks the key of a label or a taint.
func checkLabelKey(key string) *trouble.Error {
	if IsLabelKey(key) {
		return nil
	}
	const fix = `write it as "example.com/name": a domain in lower case, and at most 63 letters and digits, with -, _ and . inside`
	return wrong(fix, "Kubernetes refuses the key %s", show(key))
}

// checkLabelValue checks the value of a label or a taint. Its error does not quote the value.
func checkLabelValue(key, value string) *trouble.Error {
	if IsLabelValue(value) {
		return nil
	}
	const fix = "write at most 63 letters and digits, with -, _ and . inside"
	return wrong(fix, "Kubernetes refuses the value of %s", show(key))
}

// checkLabel returns the fault of a label, and says whether it is in the value.
func checkLabel(key, value string) (ofValue bool, fault *trouble.Error) {
	if fault := checkLabelKey(key); fault != nil {
		return false, fault
	}
	if key == "nvidia.com/gpu.present" && value != "true" {
		const fix = "take it out, and keep pods off the node by taints in [node]"
		return true, wrong(fix, "nvidia.com/gpu.present cannot be %s: gpuadm sets it to \"true\" on a machine with a GPU, and the device plugin and gpuadm's DaemonSet run where it is so", show(value))
	}
	return true, checkLabelValue(key, value)
}
