// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// another says how to get another token.
func (t *join) another() string {
	into := "into " + t.tokenFile + ", with mode 0600, then apply again"
	return "on the control plane: kubeadm token create; write what it prints " + into
}

// known says how to see which tokens the cluster knows.
func (t *join) known() string {
	return "kubeadm token list, on the control plane: is it there, with usage authentication?"
}

// mayNot says that the token's group lacks the right to ask.
func (t *join) mayNot(token bootstrapToken, err error) error {
	try := []string{
		"as the cluster's administrator: kubectl create clusterrolebinding gpuadm-bootstrap --clusterrole=system:node-bootstrapper --group=system:bootstrappers",
		"and, for the cluster to approve it by itself: kubectl create clusterrolebinding gpuadm-approve --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient --group=system:bootstrappers",
	}
	return &trouble.Error{What: fmt.Sprintf("cannot join: the token %s may not ask for a certificate", token.id), Try: try, Err: err}
}

// notApproved says that a person has to say yes. Nothing is lost: the next run asks for the answer to the same request.
func (t *join) notApproved(request string) error {
	always := "or, for all to come: kubectl create clusterrolebinding gpuadm-approve --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient --group=system:bootstrappers"
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join yet: the request %s waits to be approved", request),
		Because: []string{fmt.Sprintf("the cluster does not approve it by itself for this token; it asks to be node %s", t.name)},
		Try:     []string{"as the cluster's administrator: kubectl certificate approve " + request + ", then apply again: it goes on with the same request", always},
		Err:     node.StillWaits{},
	}
}
