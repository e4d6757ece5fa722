// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
)

const (
	requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	// approvalPatience is how long a cluster has that approves by itself; a real one took a quarter of a second. Where a person
	// has to, waiting longer is of no use.
	approvalPatience = time.Minute
)

// newKey makes a key, PEM: ECDSA on P-256, as kubelet does.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	data, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	return pemOf("EC PRIVATE KEY", data), nil
}

// privateKey reads a key of ours, nil if it is none.
func privateKey(text []byte) *ecdsa.PrivateKey {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil
	}
	return key
}

// requestName is the same for the same key and node, so that a run that was cut short finds its request again.
func requestName(key *ecdsa.PrivateKey, whose string) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(public, whose...))
	return fmt.Sprintf("gpuadm-join-%x", sum[:16]), nil
}

// signingRequest is the object that asks for the certificate: https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
func signingRequest(name string, key *ecdsa.PrivateKey, whose string) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: whose},
	}, key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(table{
		"apiVersion": "certificates.k8s.io/v1",
		"kind":       "CertificateSigningRequest",
		"metadata":   table{"name": name},
		"spec": table{
			"signerName": "kubernetes.io/kube-apiserver-client-kubelet",
			"usages":     []string{"digital signature", "client auth"},
			"request":    base64.StdEncoding.EncodeToString(pemOf("CERTIFICATE REQUEST", csr)),
		},
	})
}

// request asks for the certificate and waits for it.
func (t *tokenJoin) request(ctx context.Context, h host.Host, token bootstrapToken, keyText []byte) ([]byte, error) {
	whose, key := "system:node:"+t.name, privateKey(keyText)
	name, err := requestName(key, whose)
	if err != nil {
		return nil, err
	}
	object, err := signingRequest(name, key, whose)
	if err != nil {
		return nil, err
	}
	c, err := kube.DoWithToken(h, t.server, t.roots, token.bearer(), t.via)
	if err != nil {
		return nil, err
	}
	_, err = c.Post(ctx, requests, object)
	switch {
	case err == nil, errors.Is(err, kube.Conflict): // an earlier run has asked
	case errors.Is(err, kube.Unauthorized):
		return nil, t.unauthorized(token, err)
	case errors.Is(err, kube.Forbidden):
		return nil, t.mayNot(token, err)
	default:
		return nil, t.explain(err)
	}
	between := 250 * time.Millisecond
	vigil := startVigil(h, approvalPatience)
	for first := true; ; first = false {
		answer, _, err := c.Get(ctx, requests+"/"+name)
		if err != nil {
			return nil, t.explain(err)
		}
		if cert, err := issued(answer, name); cert != nil || err != nil {
			return t.checked(cert, keyText, whose, err)
		}
		if !first {
			between = min(2*between, 4*time.Second)
			vigil.tell(ctx, "the request "+name+" waits to be approved by the cluster, or by kubectl certificate approve")
		}
		if vigil.over() || t.sleep(ctx, between) != nil {
			return nil, t.notApproved(name)
		}
		vigil.paused += between
	}
}

func (t *tokenJoin) checked(cert, key []byte, whose string, err error) ([]byte, error) {
	if err == nil {
		if err = fits(cert, key, whose); err != nil {
			err = &converge.Trouble{
				What:    "cannot use the certificate that the cluster has made: " + err.Error(),
				Because: []string{"asked for was one of " + whose + ", for logging in"},
				Try:     []string{"look at the signer of kubernetes.io/kube-apiserver-client-kubelet: by default it is the cluster's kube-controller-manager"},
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return cert, nil
}

// issued reads an answer: the certificate once it is there, an error if it will never be.
func issued(answer []byte, name string) ([]byte, error) {
	var is struct {
		Status struct {
			Certificate []byte
			Conditions  []struct{ Type, Reason, Message string }
		}
	}
	if err := json.Unmarshal(answer, &is); err != nil {
		return nil, errors.New("cannot read what the API server says of the certificate: it is no CertificateSigningRequest")
	}
	for _, c := range is.Status.Conditions {
		if c.Type == "Denied" || c.Type == "Failed" {
			return nil, &converge.Trouble{
				What:    fmt.Sprintf("cannot get a certificate: the cluster has %s the request %s", strings.ToLower(c.Type), name),
				Because: []string{oneLine(c.Reason + ": " + c.Message)},
				Try:     []string{"once that is mended: kubectl delete csr " + name + ", then apply again"},
			}
		}
	}
	if len(is.Status.Certificate) == 0 {
		return nil, nil
	}
	return is.Status.Certificate, nil
}
