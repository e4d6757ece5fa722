// SPDX-License-Identifier: Apache-2.0

// Package cloud makes the machine a node of a Kubernetes cluster (stage join), on any cloud or
// none, and waits until the cluster has it (stage joined). Each way to join is a folder; method,
// kubelet and node have their shared code.
package cloud

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/eks"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
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

// joinNotes name the tools that join the machine, if gpuadm does not, and the keys of [join] that
// are for gpuadm's own way.
func joinNotes(_ host.View, s spec.Spec, f facts.Facts) (notes []string) {
	switch by := method.Of(s, f); {
	case joinsItself(by, f):
		notes = leftNotes(by, s, f)
	case platform.Of(by).Join.Own:
		notes = eks.Notes(s, f)
	default:
		notes = leftNotes(by, s, f)
	}

	by := method.Joiner(f)
	own := ownKeys(s.Join)
	if by != "" && len(notes) > 0 && len(own) > 0 {
		notes = append(notes, "without effect here: "+strings.Join(own, ", ")+" in [join]: "+by+" joins this machine by its own settings")
	}
	return notes
}

// ownKeys are the keys that a spec sets for gpuadm's own way to join.
func ownKeys(j spec.Join) (names []string) {
	for _, key := range []struct {
		name  string
		isSet bool
	}{
		{"ca_file", j.CAFile != ""},
		{"cluster", j.Cluster != ""},
		{"cluster_dns", len(j.ClusterDNS) > 0},
		{"region", j.Region != ""},
		{"server", j.Server != ""},
		{"service_cidr", j.ServiceCIDR != ""},
	} {
		if key.isSet {
			names = append(names, key.name)
		}
	}
	return names
}
