// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// keys are all a control plane has, in files of a folder.
type keys struct {
	dir string
	ca  authority
}

// newKeys makes the cluster's authority, the API server's certificates, and the key that signs
// tokens of ServiceAccounts.
func newKeys(dir string) (*keys, error) {
	k := &keys{dir: dir}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
	}
	made, err := k.make(ca, nil)
	if err != nil {
		return nil, err
	}
	k.ca = authority{made.Leaf, made.PrivateKey.(crypto.Signer), certPEM(made)}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(service), net.ParseIP(address)},
	}
	apiserver, err := k.make(server, &k.ca)
	if err != nil {
		return nil, err
	}
	kubelet, err := k.certify("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return nil, err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(accounts.Public())
	if err != nil {
		return nil, fmt.Errorf("cannot write a key: %w", err)
	}
	files := map[string][]byte{
		"ca.crt": k.ca.pem, "apiserver.crt": certPEM(apiserver), "kubelet-client.crt": certPEM(kubelet),
		"sa.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	}
	for name, key := range map[string]crypto.PrivateKey{
		"ca.key": made.PrivateKey, "apiserver.key": apiserver.PrivateKey, "kubelet-client.key": kubelet.PrivateKey, "sa.key": accounts,
	} {
		if files[name], err = keyPEM(key); err != nil {
			return nil, err
		}
	}

	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, fmt.Errorf("cannot write a certificate: %w", err)
		}
	}

	return k, nil
}

// newAuthority makes one that has nothing to do with the cluster's.
func newAuthority(name string) (authority, error) {
	made, err := (&keys{}).make(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
	}, nil)
	if err != nil {
		return authority{}, err
	}
	return authority{made.Leaf, made.PrivateKey.(crypto.Signer), certPEM(made)}, nil
}

// certify makes a client's certificate: who it is, and the groups it is in.
func (k *keys) certify(user string, groups ...string) (tls.Certificate, error) {
	return k.make(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, &k.ca)
}

// expired is a node's certificate that was good until a minute ago, with its key, as kubelet keeps
// both.
func (k *keys) expired(node string) (string, error) {
	cert, err := k.make(&x509.Certificate{
		Subject: pkix.Name{
			CommonName:   "system:node:" + node,
			Organization: []string{"system:nodes"},
		},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
	}, &k.ca)
	if err != nil {
		return "", err
	}
	key, err := keyPEM(cert.PrivateKey)
	return string(certPEM(cert)) + string(key), err
}

// make signs a certificate for a new key, by an authority or by itself.
func (k *keys) make(want *x509.Certificate, by *authority) (tls.Certificate, error) {
	fail := func(err error) (tls.Certificate, error) {
		return tls.Certificate{}, fmt.Errorf("cannot make the certificate of %s: %w", want.Subject.CommonName, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	if want.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return fail(err)
	}
	if want.NotAfter.IsZero() {
		want.NotBefore, want.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	if by == nil {
		by = &authority{cert: want, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, want, by.cert, key.Public(), by.key)
	if err != nil {
		return fail(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	return tls.Certificate{
		Certificate: [][]byte{der},
		PrivateKey:  key,
		Leaf:        leaf,
	}, nil
}

// pin is the sum of the authority's public key, as kubeadm join takes it: "sha256:…".
func (a authority) pin() string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(a.cert.RawSubjectPublicKeyInfo))
}

func certPEM(c tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

func keyPEM(key crypto.PrivateKey) ([]byte, error) {
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("cannot write a key of type %T", key)
	}
	der, err := x509.MarshalECPrivateKey(signer)
	if err != nil {
		return nil, fmt.Errorf("cannot write a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
