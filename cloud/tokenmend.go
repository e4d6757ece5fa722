// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// What may be done about a token is another thing where kubeadm has made the cluster and where AKS has: there nobody has a control
// plane to be on, and what the token's group is let do should be no more than the manifest says.

// aksManifest is what lets a token's group in.
const aksManifest = "images/daemonset/aks-own-machine.yaml of gpuadm's source"

// another says how to get another token.
func (t *tokenJoin) another() string {
	into := "into " + t.tokenFile + ", with mode 0600, then apply again"
	if t.aks {
		return "make a bootstrap token in the cluster as " + aksManifest + " says, and write ID.SECRET " + into
	}
	return "on the control plane: kubeadm token create; write what it prints " + into
}

// known says how to see which tokens the cluster knows.
func (t *tokenJoin) known() string {
	if t.aks {
		return "kubectl -n kube-system get secrets --field-selector type=bootstrap.kubernetes.io/token: is it there, with usage-bootstrap-authentication?"
	}
	return "kubeadm token list, on the control plane: is it there, with usage authentication?"
}

// mayNot says that the token's group lacks the right to ask.
func (t *tokenJoin) mayNot(token bootstrapToken, err error) error {
	try := []string{
		"as the cluster's administrator: kubectl create clusterrolebinding gpuadm-bootstrap --clusterrole=system:node-bootstrapper --group=system:bootstrappers",
		"and, for the cluster to approve it by itself: kubectl create clusterrolebinding gpuadm-approve --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient --group=system:bootstrappers",
	}
	if t.aks {
		try = []string{
			"as the cluster's administrator: kubectl apply -f aks-own-machine.yaml (" + aksManifest + ")",
			"and see that the token's Secret has auth-extra-groups: system:bootstrappers:gpuadm, which that file lets in",
		}
	}
	return &converge.Trouble{What: fmt.Sprintf("cannot join: the token %s may not ask for a certificate", token.id), Try: try, Err: err}
}

// notApproved says that a person has to say yes. Nothing is lost: the next run asks for the answer to the same request.
func (t *tokenJoin) notApproved(request string) error {
	always := "or, for all to come: kubectl create clusterrolebinding gpuadm-approve --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient --group=system:bootstrappers"
	if t.aks {
		always = "or, for all to come: kubectl apply -f aks-own-machine.yaml (" + aksManifest + ")"
	}
	return &converge.Trouble{
		What:    fmt.Sprintf("cannot join yet: the request %s waits to be approved", request),
		Because: []string{fmt.Sprintf("the cluster does not approve it by itself: nobody may who shows this token; it asks to be node %s", t.name)},
		Try:     []string{"as the cluster's administrator: kubectl certificate approve " + request + ", then apply again: it goes on with the same request", always},
		Err:     stillWaits{},
	}
}
