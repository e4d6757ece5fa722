// SPDX-License-Identifier: Apache-2.0

// Package cloud makes the machine a node of a Kubernetes cluster (stage join), on any cloud or
// none, and waits until the cluster has it (stage joined). Each way to join is a folder; method,
// kubelet and node have their shared code.
package cloud

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// untold returns an error that lists the signs gpuadm looked for, if nothing says how to join.
func untold(f facts.Facts) error {
	seen := "the firmware names no cloud"
	if f.Cloud.Name != "" {
		seen = fmt.Sprintf("the machine is in %s (%s), and none of that cloud's own scripts is on it", f.Cloud.Name, f.Cloud.Why)
	}

	var signs, methods []string
	for _, p := range platform.Joining() {
		signs = append(signs, p.Every[0]+" ("+p.Title+")")
		methods = append(methods, strconv.Quote(p.Join.Method))
	}

	last := len(methods) - 1
	return &trouble.Error{
		What: `cannot join by method = "auto": gpuadm cannot determine which cluster this machine is for`,
		Because: []string{
			seen,
			"looked for: " + strings.Join(signs, ", ") + ", EC2's firmware",
		},
		Try: []string{
			"write method = " + strings.Join(methods[:last], ", ") + " or " + methods[last] + " in [join]",
			"or leave [join] out where another tool joins the machine: " + trouble.Command("apply --install") + ", then kubeadm join",
		},
	}
}
