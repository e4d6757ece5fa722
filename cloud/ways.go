// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"strings"

	"github.com/gpuadm/gpuadm/cloud/eks"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// joinWants are what gpuadm does for the join: its own way, or what the way of a platform needs.
func joinWants(session *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	by := method.Of(s, f)
	switch {
	case by == "none":
		return nil, nil
	case by == "":
		return nil, untold(f)
	case isOwnWay(by, f):
		return eks.Wants(session, s, f)
	}
	return leftTo(by, f)
}

// joinNotes name the tools that join the machine, if gpuadm does not, and the keys of [join] that
// are for gpuadm's own way.
func joinNotes(_ host.View, s spec.Spec, f facts.Facts) (notes []string) {
	by := method.Of(s, f)
	if isOwnWay(by, f) {
		notes = eks.Notes(s, f)
	} else {
		notes = leftNotes(by, s, f)
	}

	joiner := method.Joiner(f)
	own := ownKeys(s.Join)
	if joiner != "" && len(notes) > 0 && len(own) > 0 {
		keys := strings.Join(own, ", ") + " in [join]"
		notes = append(notes, "without effect here: "+keys+": "+joiner+" joins this machine by its own settings")
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
