// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package method

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NodeName is what the node is called: as kubelet does it, the host's name in lower case
// (kubernetes, pkg/util/node/node.go, GetHostname).
func NodeName(s spec.Spec, f facts.Facts) string {
	if s.Join.NodeName != "" {
		return s.Join.NodeName
	}
	if name := eksName(s, f); name != "" {
		return name
	}
	return strings.ToLower(strings.TrimSpace(f.Hostname))
}

// NameFits refuses what cannot be a node's name: RFC 1123 in lower case (kubernetes, pkg/apis/core/validation:
// ValidateNodeName), and at most 63 characters, since kubelet makes it the value of the label kubernetes.io/hostname too
// (pkg/kubelet/kubelet_node_status.go, initialNode).
func NameFits(name string, s spec.Spec) error {
	problem := ""
	switch {
	case name == "":
		problem = "the machine has no host name"
	case name == "localhost" || strings.HasPrefix(name, "localhost."):
		problem = fmt.Sprintf("the machine is called %q, as every machine is that was given no name", name)
	case len(name) > 63:
		problem = fmt.Sprintf("%.60q… has %d characters, and 63 are allowed", name, len(name))
	default:
		for part := range strings.SplitSeq(name, ".") {
			if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || part[0] == '-' || part[len(part)-1] == '-' {
				problem = fmt.Sprintf("%q is no name for a node: lower-case letters, digits and \"-\" are, with \".\" between", name)
			}
		}
	}
	if problem == "" {
		return nil
	}
	t := &trouble.Error{What: "cannot join: " + problem, Try: []string{`write node_name = "…" in [join], or hostnamectl set-hostname NAME`}}
	if s.Join.NodeName != "" {
		t.Try = []string{"write another node_name in [join]"}
	}
	return t
}
