// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// authority signs certificates for a test; no other program trusts it.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	a := authority{}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	a.pem, _, a.key = signed(t, a.cert, nil)
	return a
}

// client signs a client certificate, and returns it with its key, in PEM form.
func (a authority) client(t testing.TB, name string, from, to time.Time) (cert, key []byte) {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}, NotBefore: from, NotAfter: to}
	cert, key, _ = signed(t, c, &a)
	return cert, key
}

func signed(t testing.TB, c *x509.Certificate, by *authority) (cert, key []byte, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	if by == nil {
		by = &authority{cert: c, key: private}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &private.PublicKey, by.key)
	must.OK(t, err)
	text, err := x509.MarshalECPrivateKey(private)
	must.OK(t, err)
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), private
}
