// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Signer is what a cluster has for machines that want to join: cluster-info with its signatures, and a controller that
// approves and signs certificates.
type Signer struct {
	// Approve says what becomes of a request: "" it is signed, "wait" no controller handles it, "Approved" it is not signed, "Denied", "Failed".
	Approve string
	Now     time.Time // certificates hold for a year from then on

	server *Server
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	url    string
	asked  map[string]Object
}

// Bootstrapper is who shows a bootstrap token and may ask for a certificate.
func Bootstrapper(id string) User {
	return User{
		Name: "system:bootstrap:" + id, Groups: []string{"system:bootstrappers", "system:authenticated"},
		May: []string{"create certificatesigningrequests", "get certificatesigningrequests", "list certificatesigningrequests", "get nodes"},
	}
}

// Joinable gives the server a cluster-info for its URL, and a signer.
func (s *Server) Joinable(url string, now time.Time) *Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(10 * 365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	g := &Signer{Now: now, server: s, key: key, cert: cert, url: url, asked: map[string]Object{}}
	s.locked(func() { s.signer = g })
	g.Publish()
	return g
}

// CA is the cluster's certificate authority, PEM.
func (g *Signer) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.cert.Raw})
}

// Pin is the CA's pin.
func (g *Signer) Pin() string {
	sum := sha256.Sum256(g.cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Publish rewrites cluster-info, signed by these tokens.
func (g *Signer) Publish(tokens ...string) {
	text := "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(g.CA()) + "\n    server: " + g.url + "\n"
	data := Object{"kubeconfig": text}
	for _, token := range tokens {
		id, secret, _ := strings.Cut(token, ".")
		data["jws-kubeconfig-"+id] = Sign(text, id, secret)
	}
	g.server.Serve("/api/v1/namespaces/kube-public/configmaps/cluster-info", Object{"kind": "ConfigMap", "apiVersion": "v1", "data": data})
}

// Sign is the detached signature of a text by a token.
func Sign(text, id, secret string) string {
	b64 := base64.RawURLEncoding
	header := b64.EncodeToString([]byte(`{"alg":"HS256","kid":"` + id + `"}`))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(header + "." + b64.EncodeToString([]byte(text))))
	return header + ".." + b64.EncodeToString(mac.Sum(nil))
}

// Asked names the requests for certificates.
func (g *Signer) Asked() (names []string) {
	g.server.locked(func() {
		for name := range g.asked {
			names = append(names, name)
		}
	})
	return names
}

// Settle approves, or as Approve says, what has waited.
func (g *Signer) Settle(approve string) {
	g.server.locked(func() {
		g.Approve = approve
		for _, o := range g.asked {
			g.judge(o)
		}
	})
}

// answer answers what has to do with joining; the server is locked.
func (g *Signer) answer(r *http.Request, u User, body []byte) (answer, bool) {
	const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	var o Object
	if r.Method == http.MethodPost && json.Unmarshal(body, &o) != nil {
		return failure(400, "BadRequest", "no JSON", nil), true
	}
	switch path := r.URL.Path; {
	case path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" && r.Method == http.MethodPost:
		spec := below(below(o, "spec"), "resourceAttributes")
		verb, _ := spec["verb"].(string)
		what, _ := spec["resource"].(string)
		return answer{201, Object{"kind": "SelfSubjectAccessReview", "status": Object{"allowed": u.may(verb, what, "")}}}, true
	case path == requests && r.Method == http.MethodPost:
		name, _ := below(o, "metadata")["name"].(string)
		switch {
		case !u.may("create", "certificatesigningrequests", name):
			return forbidden(u, "create", "certificatesigningrequests", name, "certificates.k8s.io"), true
		case g.asked[name] != nil:
			return failure(409, "AlreadyExists", name+" already exists", nil), true
		}
		below(o, "metadata")["creationTimestamp"] = g.Now.UTC().Format(time.RFC3339)
		below(o, "spec")["username"] = u.Name
		g.asked[name] = o
		g.judge(o)
		return answer{201, Object{"kind": "CertificateSigningRequest", "metadata": o["metadata"], "spec": o["spec"]}}, true
	case path == requests && r.Method == http.MethodGet:
		if !u.may("list", "certificatesigningrequests", "") {
			return forbidden(u, "list", "certificatesigningrequests", "", "certificates.k8s.io"), true
		}
		items := []any{}
		for _, name := range slices.Sorted(maps.Keys(g.asked)) {
			items = append(items, g.asked[name])
		}
		return answer{200, Object{"kind": "CertificateSigningRequestList", "items": items}}, true
	case strings.HasPrefix(path, requests+"/") && r.Method == http.MethodGet:
		name := strings.TrimPrefix(path, requests+"/")
		switch {
		case !u.may("get", "certificatesigningrequests", name):
			return forbidden(u, "get", "certificatesigningrequests", name, "certificates.k8s.io"), true
		case g.asked[name] == nil:
			return failure(404, "NotFound", name+" not found", nil), true
		}
		return answer{200, g.asked[name]}, true
	}
	return answer{}, false
}

// judge does what the controllers do with a request.
func (g *Signer) judge(o Object) {
	status := below(o, "status")
	switch g.Approve {
	case "wait":
		return
	case "Approved": // by a controller; and there is none that signs
		status["conditions"] = []any{Object{"type": "Approved", "status": "True"}}
		return
	case "Denied", "Failed":
		status["conditions"] = []any{Object{"type": g.Approve, "status": "True", "reason": "Policy", "message": "as the test wants it"}}
		return
	}
	spec := below(o, "spec")
	text, _ := spec["request"].(string)
	plain, _ := base64.StdEncoding.DecodeString(text)
	block, _ := pem.Decode(plain)
	fail := func(why string) {
		status["conditions"] = []any{Object{"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why}}
	}
	if block == nil || spec["signerName"] != "kubernetes.io/kube-apiserver-client-kubelet" {
		fail("no request for this signer")
		return
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil || len(csr.Subject.Organization) != 1 || csr.Subject.Organization[0] != "system:nodes" {
		fail("not what a kubelet asks for")
		return
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: csr.Subject, NotBefore: g.Now.Add(-5 * time.Minute), NotAfter: g.Now.Add(365 * 24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, g.cert, csr.PublicKey, g.key)
	if err != nil {
		fail(err.Error())
		return
	}
	status["conditions"] = []any{Object{"type": "Approved", "status": "True"}}
	status["certificate"] = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
