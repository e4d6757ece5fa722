// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// moduleKey makes a private key in PEM, and a certificate of it in DER.
func moduleKey(t *testing.T) (key, cert []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "site key"}}
	cert, err = x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	must.OK(t, err)
	der := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), cert
}

// TestModuleKey: the key and the certificate must be each other's, and readable without a passphrase. The certificate may be PEM.
func TestModuleKey(t *testing.T) {
	key, cert := moduleKey(t)
	other, _ := moduleKey(t)
	block, _ := pem.Decode(key)
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: block.Bytes})
	older := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED"}, Bytes: block.Bytes})
	armoured := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for _, x := range []struct {
		name      string
		key, cert []byte
		says      string
	}{
		{"DER", key, cert, ""},
		{"PEM", key, armoured, ""},
		{"no PEM", []byte("x"), cert, "the key is not in PEM"},
		{"encrypted", encrypted, cert, "the key is encrypted, and bake asks for no passphrase"},
		{"encrypted, PKCS 1", older, cert, "the key is encrypted"},
		{"no certificate", key, []byte("x"), "the certificate is no X.509 certificate"},
		{"the two exchanged", armoured, key, "the certificate is no X.509 certificate"},
		{"another's", other, cert, "private key does not match public key"},
		{"broken", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), cert, "failed to parse private key"},
	} {
		c := &common{env: env{read: func(name string) ([]byte, error) { return map[string][]byte{"k": x.key, "c": x.cert}[name], nil }}}
		got, err := c.signing(bakeFlags{moduleKey: "k", moduleCert: "c"})
		switch {
		case x.says == "":
			if err != nil || string(got.Certificate) != string(cert) || string(got.Private) != string(key) {
				t.Errorf("%s: %v", x.name, err)
			}
		case !errors.As(err, new(usage)) || !strings.Contains(err.Error(), x.says):
			t.Errorf("%s: %v", x.name, err)
		}
		if x.says == "" {
			trust, err := c.forSecureBoot(bakeFlags{}, got)
			if err != nil || !trust.Demands() || !trust.Trusts(trust.Build) || trust.Build.Name != "site key" {
				t.Errorf("%s: %+v, %v", x.name, trust, err)
			}
		}
	}
}

// TestModuleKeyOutside: an image in which the key lies is not sealed, whichever way its folder is named.
func TestModuleKeyOutside(t *testing.T) {
	key, cert := moduleKey(t)
	root := t.TempDir()
	for _, dir := range []string{"image/root", "elsewhere"} {
		must.OK(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	n := must.Get(simhost.New([]byte("-- root/ --\n")))(t)
	must.OK(t, n.WriteFile("/root/k.pem", key, host.Attr{Mode: 0o600}))
	must.OK(t, os.Symlink("image", filepath.Join(root, "link")))
	for _, x := range []struct {
		root, key string
		refused   bool
	}{
		{"image", "image/root/k.pem", true},
		{"link", "image/root/k.pem", true},
		{"image", "elsewhere/k.pem", false},
		{"image", "image/root/gone.pem", false}, // in what the image's view hides
	} {
		c := &common{rootDir: filepath.Join(root, x.root)}
		err := c.keyOutside(n, bakeFlags{moduleKey: filepath.Join(root, x.key)}, &host.ModuleKey{Private: key, Certificate: cert})
		if told := (*trouble.Error)(nil); errors.As(err, &told) != x.refused {
			t.Errorf("%s in %s: %v", x.key, x.root, err)
		}
	}
}
