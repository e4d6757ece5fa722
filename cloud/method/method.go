// SPDX-License-Identifier: Apache-2.0

// Package method determines, from the spec and the machine, how the machine joins its cluster,
// under which name, and which tool owns its kubelet.
package method

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Of returns how the node joins: by [join] or, with method = "auto", by the machine's files and its
// firmware. "" if they do not show it.
func Of(s spec.Spec, f facts.Facts) string {
	if s.Join.Method != "auto" {
		return s.Join.Method
	}
	if method := platform.Of(f.Cloud.Managed).Join.Method; method != "" {
		return method
	}
	return platform.OwnMethodIn(f.Cloud.Name)
}

// Joiner names the scripts that make the machine a node, "" if there are none.
func Joiner(f facts.Facts) string {
	return platform.Of(f.Cloud.Managed).Join.By
}

// SetUpByGpuadm says whether kubelet uses a unit file that gpuadm's join has written, whatever
// [join] says now: without that section gpuadm releases its files and leaves them.
func SetUpByGpuadm(f facts.Facts) bool {
	return slices.ContainsFunc(OwnUnits(), func(name string) bool {
		return bytes.HasPrefix(f.Files[name], []byte(kubelet.Written))
	})
}

// OwnUnits returns the possible unit files of a kubelet that gpuadm has set up; it has one of them.
func OwnUnits() []string { return []string{kubelet.UnitFile, kubelet.DropIn} }

// Files returns the files that the join reads. Every user may read them, since facts may be
// printed.
func Files(s spec.Spec) (names []string) {
	if s.Join.Method == "none" {
		return nil
	}
	names = []string{
		"/proc/swaps", "/etc/resolv.conf",
		kubelet.Kubeconfig, kubelet.UnitFile, kubelet.DropIn,
	}
	names = append(names, platform.ReadForJoin()...)
	names = append(names, instance.ECRConfig)
	for _, name := range []string{s.Join.CAFile, s.Join.KubeletConfig} {
		if name != "" {
			names = append(names, name)
		}
	}

	return names
}

// Via returns how the machine reaches the API server.
func Via(s spec.Spec) host.Via {
	return host.Via{
		HTTP:   s.Proxy.HTTP,
		HTTPS:  s.Proxy.HTTPS,
		No:     s.Proxy.NoProxy,
		CAFile: s.Proxy.CAFile,
	}
}

// NodeName returns the node's name. Like kubelet it uses the host's name in lower case
// (kubernetes, pkg/util/node/node.go, GetHostname).
func NodeName(s spec.Spec, f facts.Facts) string {
	if s.Join.NodeName != "" {
		return s.Join.NodeName
	}
	if name := cloudName(s, f); name != "" {
		return name
	}
	return strings.ToLower(strings.TrimSpace(f.Hostname))
}

// NameFits refuses an invalid node name: RFC 1123 in lower case (kubernetes,
// pkg/apis/core/validation: ValidateNodeName), and at most 63 characters, since kubelet makes it
// the value of the label kubernetes.io/hostname too (pkg/kubelet/kubelet_node_status.go,
// initialNode).
func NameFits(name string, s spec.Spec) error {
	problem := nameProblem(name)
	if problem == "" {
		return nil
	}

	t := &trouble.Error{
		What: "cannot join: " + problem,
		Try:  []string{`write node_name = "…" in [join], or hostnamectl set-hostname NAME`},
	}
	if s.Join.NodeName != "" {
		t.Try = []string{"write another node_name in [join]"}
	}
	return t
}

// nameProblem says why a name cannot be a node's, "" if it can.
func nameProblem(name string) string {
	switch {
	case name == "":
		return "the machine has no host name"
	case name == "localhost" || strings.HasPrefix(name, "localhost."):
		return fmt.Sprintf("the machine is called %q, as every machine is that was given no name", name)
	case len(name) > 63:
		return fmt.Sprintf("%.60q… has %d characters, and 63 are allowed", name, len(name))
	}

	for part := range strings.SplitSeq(name, ".") {
		if !isDNSLabel(part) {
			return fmt.Sprintf("%q is not a name for a node: lower-case letters, digits and \"-\" are, with \".\" between", name)
		}
	}
	return ""
}

// isDNSLabel reports whether a part of a name is a label of RFC 1123, in lower case.
func isDNSLabel(part string) bool {
	others := strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-")
	outerDash := strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-")
	return part != "" && others == "" && !outerDash
}
