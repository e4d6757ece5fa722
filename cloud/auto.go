// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/aks"
	"github.com/gpuadm/gpuadm/cloud/eks"
	"github.com/gpuadm/gpuadm/cloud/gke"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/cloud/token"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// untold says what was looked for, where nothing tells how to join.
func untold(f facts.Facts) error {
	seen := "the firmware names no cloud"
	if f.Cloud.Name != "" {
		seen = fmt.Sprintf("the machine is in %s (%s), and none of that cloud's own scripts is on it", f.Cloud.Name, f.Cloud.Why)
	}
	return &trouble.Error{
		What: `cannot join by method = "auto": gpuadm cannot determine which cluster this machine is for`,
		Because: []string{
			seen,
			"looked for: nodeadm or bootstrap.sh (EKS), /opt/azure/containers (AKS), /home/kubernetes (GKE), EC2's firmware, a token_file in [join]",
		},
		Try: []string{`write method = "token" in [join], with server, ca_pin or ca_file, and token_file`, `or write method = "eks", "aks" or "gke"`},
	}
}

// tokenAnyway is a join by token that method = "auto" has led to: of it the spec did not check that all is there.
func tokenAnyway(se *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if s.Join.Server == "" || s.Join.CAFile == "" && s.Join.CAPin == "" {
		return nil, &trouble.Error{
			What: "cannot join by the token in " + s.Join.TokenFile + ": server, or ca_file or ca_pin, is missing in [join]",
			Try:  []string{"write server = \"https://HOST:6443\" and ca_pin = \"sha256:…\" in [join], as kubeadm token create --print-join-command prints them"},
		}
	}
	return token.Wants(se, s, f)
}

// joinNotes tell who does what, where it is not us.
func joinNotes(_ host.View, s spec.Spec, f facts.Facts) []string {
	switch method.Of(s, f) {
	case "eks":
		return eks.Notes(s, f)
	case "aks":
		return aks.Notes(s, f)
	case "gke":
		return gke.Notes(f)
	}
	return nil
}
