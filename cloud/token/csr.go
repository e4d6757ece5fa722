// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	kubeletSigner = "kubernetes.io/kube-apiserver-client-kubelet"
	requests      = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	// certificatePatience is how long kubelet has to get its certificate, once it was started. A real cluster that approves by
	// itself takes a second or two; where a person has to approve, waiting longer does not help.
	certificatePatience = time.Minute
)

// signingRequest is what the cluster shows of a CertificateSigningRequest.
type signingRequest struct {
	Metadata struct {
		Name              string
		CreationTimestamp time.Time
	}
	Spec struct {
		Request              []byte
		SignerName, Username string
	}
	Status struct {
		Conditions []struct{ Type, Reason, Message string }
	}
}

// waitCertified waits until kubelet has its certificate, and says of a request that was not signed which one it is.
func (t *join) waitCertified(ctx context.Context, h host.Host) error {
	between := 50 * time.Millisecond
	for watch := node.StartWait(h, certificatePatience); ; watch.Paused, between = watch.Paused+between, min(2*between, 2*time.Second) {
		if t.certified(h) {
			return nil
		}
		asked, err := t.request(ctx, h)
		problem := ""
		switch {
		case err == nil:
			if problem, err = asked.problem(); err != nil {
				return err
			}
		case !trouble.Passes(err):
			return err
		default:
			problem = err.Error()
		}
		watch.Tell(ctx, problem)
		if watch.Over() || t.sleep(ctx, between) != nil {
			return t.uncertified(asked, problem)
		}
	}
}

// request is the last request that this node's kubelet has made by the token, nil if there is none or the token may not look. The role
// system:node-bootstrapper lets it (kubernetes, plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go: create, get, list, watch).
func (t *join) request(ctx context.Context, v host.View) (last *signingRequest, err error) {
	if err := t.try(ctx, v); err != nil {
		return nil, err
	}
	token, err := t.read(v)
	if err != nil {
		return nil, err
	}
	answer, _, err := t.client(v, token).Get(ctx, requests+"?fieldSelector=spec.signerName%3D"+kubeletSigner)
	if refused(err) {
		return nil, nil
	} else if err != nil {
		return nil, t.explain(err)
	}
	var list struct{ Items []signingRequest }
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, t.noAPI(fmt.Errorf("what it lists are no CertificateSigningRequests: %w", err))
	}
	for i, is := range list.Items {
		if is.Spec.SignerName != kubeletSigner || is.Spec.Username != "system:bootstrap:"+token.id {
			continue
		}
		block, _ := pem.Decode(is.Spec.Request)
		if block == nil {
			continue
		}
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.Subject.CommonName != "system:node:"+t.name {
			continue
		}
		if last == nil || !is.Metadata.CreationTimestamp.Before(last.Metadata.CreationTimestamp) {
			last = &list.Items[i]
		}
	}
	return last, nil
}

// problem says what a request waits for; the error, that the cluster has refused it.
func (r *signingRequest) problem() (string, error) {
	if r == nil {
		return "kubelet has not asked for its certificate yet", nil
	}
	name, approved := r.Metadata.Name, false
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case "Denied", "Failed":
			return "", &trouble.Error{
				What:    fmt.Sprintf("cannot join: the request %s for the node's certificate is %s", name, strings.ToLower(c.Type)),
				Because: []string{trouble.OneLine(c.Reason + ": " + c.Message)},
				Try:     []string{"kubectl describe csr " + name + "; once its cause is fixed: kubectl delete csr " + name + ", then apply again"},
			}
		case "Approved":
			approved = true
		}
	}
	if approved {
		return "the request " + name + " is approved, and no certificate was issued yet", nil
	}
	return "the request " + name + " waits to be approved by the cluster, or by kubectl certificate approve " + name, nil
}

// uncertified says that kubelet still has no certificate, and what to do. The next run waits for the same request.
func (t *join) uncertified(asked *signingRequest, problem string) error {
	out := &trouble.Error{What: "cannot join yet: " + problem, Err: node.StillWaits{}}
	switch {
	case asked == nil:
		out.Try = []string{"journalctl -u kubelet, which says what it waits for", "then run the same command again: it goes on from here"}
	case len(asked.Status.Conditions) > 0:
		out.Try = []string{"look at the signer of " + kubeletSigner + ": by default it is the cluster's kube-controller-manager"}
	default:
		return t.notApproved(asked.Metadata.Name)
	}
	return out
}
