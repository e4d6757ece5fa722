// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// A token that was made a moment ago is signed for a moment later: by the bootstrapsigner, one of the cluster's controllers.
	signaturePatience = 6 * time.Second
	signaturePause    = 500 * time.Millisecond
)

// trust finds out whose certificate the API server must show: what ca_file holds, or what the cluster publishes for those
// who have a token, if that is what the pin says.
func (t *join) trust(ctx context.Context, v host.View, token bootstrapToken) ([]byte, error) {
	if t.caFile != "" {
		return t.givenAuthority()
	}
	blind, err := kube.Anonymous(v, t.server, t.via, nil, true)
	if err != nil {
		return nil, err
	}
	text, err := t.published(ctx, v, blind, token)
	if err != nil {
		return nil, err
	}
	roots, err := authorityIn(text)
	if err != nil {
		return nil, t.noAPI(err)
	}
	if !pinned(roots, t.pin) && slices.Contains(pins(roots), t.pin) {
		return nil, &trouble.Error{
			What:    fmt.Sprintf("cannot trust %s by ca_pin: the cluster has another certificate authority beside the one that it names", t.server),
			Because: []string{"ca_pin is " + t.pin, "the cluster's are " + strings.Join(pins(roots), ", "), "a cluster that changes its CA publishes both for a while"},
			Try:     []string{`write ca_file = "/etc/gpuadm/ca.crt" in [join] in place of ca_pin, with all of /etc/kubernetes/pki/ca.crt of the control plane`},
		}
	}
	if !pinned(roots, t.pin) {
		return nil, &trouble.Error{
			What:    fmt.Sprintf("cannot trust %s: its certificate authority is not the one that ca_pin says", t.server),
			Because: []string{"ca_pin is " + t.pin, "the cluster's is " + strings.Join(pins(roots), ", "), "either the pin is of another cluster, or another server answers in its place"},
			Try:     []string{"kubeadm token create --print-join-command, on the control plane, which prints the right pin"},
		}
	}
	// Up to here any server could have answered. Asked again, by the certificate, it must say the same.
	sure, err := kube.Anonymous(v, t.server, t.via, roots, false)
	if err != nil {
		return nil, err
	}
	again, err := configMap(ctx, sure, "kube-public", "cluster-info")
	if err != nil {
		return nil, t.explain(err)
	}
	if again["kubeconfig"] != text {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot trust %s: it said something else when its certificate was looked at", t.server),
			Try:  []string{"find out who answers there: openssl s_client -connect " + t.address()},
		}
	}
	return roots, nil
}

// published returns the kubeconfig that the cluster shows to everybody, once its signature by the token was checked. The
// signature may come late.
func (t *join) published(ctx context.Context, v host.View, c *kube.Client, token bootstrapToken) (string, error) {
	for waited := time.Duration(0); ; waited += signaturePause {
		info, date, err := configMapDated(ctx, c, "kube-public", "cluster-info")
		if skew := t.skew(v, date); skew != nil {
			return "", skew
		}
		if err != nil {
			return "", t.noInfo(err)
		}
		text, signature := info["kubeconfig"], info["jws-kubeconfig-"+token.id]
		switch {
		case text == "":
			return "", t.noInfo(errors.New("the ConfigMap cluster-info holds no kubeconfig"))
		case signature != "" && signs(signature, text, token):
			return text, nil
		case signature != "":
			return "", &trouble.Error{
				What:    fmt.Sprintf("cannot use the token in %s: the cluster knows a token %s, and its secret part is another", t.tokenFile, token.id),
				Because: []string{"what the cluster publishes is signed by it, and the signature does not fit; nothing of the token was sent"},
				Try:     []string{"kubeadm token list, on the control plane, then write the right one into " + t.tokenFile},
			}
		case waited >= signaturePatience:
			return "", t.unknownToken(token)
		}
		if err := t.sleep(ctx, signaturePause); err != nil {
			return "", err
		}
	}
}

// unknownToken says that the cluster does not know the token. One that has expired is removed by its tokencleaner, so gpuadm
// cannot distinguish the two.
func (t *join) unknownToken(token bootstrapToken) error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot use the token in %s: the cluster knows no token %s", t.tokenFile, token.id),
		Because: []string{"the token has expired (after 24 hours by default), belongs to another cluster, or lacks the usage signing"},
		Try:     []string{"kubeadm token create, on the control plane, and write what it prints into " + t.tokenFile},
	}
}

// noInfo says that the cluster publishes nothing for those who want to join.
func (t *join) noInfo(err error) error {
	if node.KubeError(err) != nil && !refused(err) && !errors.Is(err, kube.Unauthorized) {
		return t.explain(err)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot find out whom to trust: %s does not show the ConfigMap cluster-info in kube-public to everybody", t.server),
		Because: []string{trouble.OneLine(err.Error()), "kubeadm makes it; clusters made otherwise may have none, or answer no one they do not know"},
		Try:     []string{`write ca_file = "/etc/gpuadm/ca.crt" in [join], with the cluster's CA certificate, in place of ca_pin`},
	}
}

// signs says whether a detached signature (RFC 7515, appendix F: header..signature) is one of the text by the token. Only what
// Kubernetes makes is taken: HS256, by the token's id. Source: k8s.io/cluster-bootstrap/token/jws.
func signs(signature, text string, token bootstrapToken) bool {
	header, rest, found := strings.Cut(signature, ".")
	payload, mac, more := strings.Cut(rest, ".")
	if !found || !more || payload != "" {
		return false
	}
	plain, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return false
	}
	var says struct{ Alg, Kid string }
	if json.Unmarshal(plain, &says) != nil || says.Alg != "HS256" || says.Kid != token.id {
		return false
	}
	want, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil {
		return false
	}
	h := hmac.New(sha256.New, []byte(token.secret))
	h.Write([]byte(header + "." + base64.RawURLEncoding.EncodeToString([]byte(text))))
	return hmac.Equal(want, h.Sum(nil))
}

// authorityIn returns the certificate authority of a kubeconfig's one cluster.
func authorityIn(kubeconfig string) ([]byte, error) {
	var is struct {
		Clusters []struct {
			Cluster struct {
				CA string `yaml:"certificate-authority-data"`
			}
		}
	}
	if err := yaml.Unmarshal([]byte(kubeconfig), &is); err != nil || len(is.Clusters) != 1 {
		return nil, errors.New("what it publishes is no kubeconfig of one cluster")
	}
	data, err := base64.StdEncoding.DecodeString(is.Clusters[0].Cluster.CA)
	if err != nil || len(pins(data)) == 0 {
		return nil, errors.New("the kubeconfig that it publishes has no certificate authority")
	}
	return data, nil
}

// certificates are those of a PEM text.
func certificates(text []byte) (list []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			list = append(list, c)
		}
	}
	return list
}

// pins are the pins of a PEM text's certificates: of their public keys, as kubeadm makes them
// (kubernetes, cmd/kubeadm/app/util/pubkeypin; RFC 7469 has the same digest).
func pins(text []byte) (list []string) {
	for _, c := range certificates(text) {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		list = append(list, "sha256:"+hex.EncodeToString(sum[:]))
	}
	return list
}

// pinned says whether all of a text's certificates, and there is one at least, are what the pin says. One that is not would be
// trusted beside the one that is.
func pinned(text []byte, pin string) bool {
	list := pins(text)
	return len(list) > 0 && !slices.ContainsFunc(list, func(at string) bool { return at != pin })
}

// shareAuthority says whether two PEM texts hold a certificate in common.
func shareAuthority(a, b []byte) bool {
	return slices.ContainsFunc(certificates(a), func(one *x509.Certificate) bool { return slices.ContainsFunc(certificates(b), one.Equal) })
}

// sameAuthorities says whether two PEM texts hold the same certificates, whatever text is between them.
func sameAuthorities(a, b []byte) bool {
	return slices.EqualFunc(certificates(a), certificates(b), func(a, b *x509.Certificate) bool { return bytes.Equal(a.Raw, b.Raw) })
}
