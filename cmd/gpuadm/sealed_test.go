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

	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestSealed: plan and apply refuse a node that its cloud makes as a whole, in the words of the
// cloud's page, and touch nothing.
func TestSealed(t *testing.T) {
	// As kubelet-env and kubelet-exec-start-conf of bottlerocket-os/bottlerocket-core-kit at
	// a10182f9, packages/kubernetes-1.31.
	env := "-- etc/kubernetes/kubelet/env --\nNODE_IP=10.0.1.23\nNODE_LABELS=karpenter.sh/nodepool=gpu,eks.amazonaws.com/compute-type=auto\nNODE_TAINTS=\n"
	// As in the public image amazonlinux:2; dpkg's database says nothing of the system.
	al2 := "-- etc/os-release --\nNAME=\"Amazon Linux\"\nVERSION=\"2\"\nID=\"amzn\"\nID_LIKE=\"centos rhel fedora\"\nVERSION_ID=\"2\"\nPRETTY_NAME=\"Amazon Linux 2\"\n"
	bootstrap := "-- etc/eks/bootstrap.sh --\n#!/bin/sh\n"
	for _, c := range []struct{ name, machine, more, page string }{ // without a name: the page's sentence is a note
		{"Bottlerocket", "eks-bottlerocket", "", "eks"},
		{"EKS Auto Mode", "eks-bottlerocket", env, "eks"},
		{"GKE Autopilot", "gke-cos", "-- proc/sys/kernel/hostname --\ngk3-online-boutique-pool-1-b46cb125-t4tv\n", "gke"},
		{"Talos", "talos", "", ""},
		{"EKS with Amazon Linux 2", "ubuntu24-h100", al2 + bootstrap, "eks"},
		{"", "ubuntu24-h100", bootstrap, ""},
		{"", "aks-ubuntu2204", "", platform.Of("aks").Limit},
		{"", "gke-cos", "", platform.SystemOf("cos").Limit},
		{"", "operator-26.3", "", ""},
		{"", "operator-26.7", "", ""},
	} {
		t.Run(c.machine+" "+c.name, func(t *testing.T) {
			found := string(recorded(t)[c.machine])
			if strings.Contains(c.more, "-- etc/os-release --") {
				found = strings.Replace(found, "-- etc/os-release", "-- etc/os-release.before", 1)
			}
			archive := found + c.more + "-- etc/gpuadm/node.toml --\nformat = 1\n[runtime]\n"
			n := must.Get(simhost.New([]byte(archive)))(t)
			touched := n.Touches()
			code, out := onHost(t, n, "plan", "-v")
			if c.name == "" {
				check.That(t, code == 0 && !strings.Contains(out, "cannot prepare") && strings.Contains(strings.Join(strings.Fields(out), " "), c.page),
					"exit code %d\n%s", code, out)
				return
			}

			var why, use string
			for _, s := range platform.AllSealed() {
				if s.Name == c.name {
					why, use = s.Why, s.Use
				}
			}

			for verb, wide := range map[string]string{"plan": out, "apply": applied(t, n)} {
				text := strings.Join(strings.Fields(wide), " ")
				for _, word := range []string{"cannot prepare a node of " + c.name + ": " + why, "use " + use} {
					check.That(t, strings.Contains(text, word), "%s does not say %q:\n%s", verb, word, wide)
				}
			}

			check.That(t, code == exitCannot && n.Touches() == touched, "exit code %d, %d touches", code, n.Touches()-touched)
			if c.page != "" {
				onPage(t, c.page, c.name+" | gpuadm cannot prepare these nodes: "+why+". Use "+use)
			}
		})
	}

	onPage(t, "aks", "AKS Automatic | "+platform.Of("aks").Limit)
	onPage(t, "gke", "Container-Optimized OS | "+platform.SystemOf("cos").Limit)
}

func applied(t *testing.T, n *simhost.Node) string {
	t.Helper()
	code, out := onHost(t, n, "apply", "--unattended")
	check.That(t, code == exitCannot, "apply's exit code is %d", code)
	return out
}

func onPage(t *testing.T, page, text string) {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + page + ".md")
	check.That(t, err == nil && strings.Contains(string(b), text), "docs/%s.md does not say %q: %v", page, text, err)
}

// moduleKey makes a private key in PEM, and a certificate of it in DER.
func moduleKey(t *testing.T) (key, cert []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7),
		Subject:      pkix.Name{CommonName: "site key"},
	}
	cert, err = x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	must.OK(t, err)
	der := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), cert
}

// TestModuleKey: the key and the certificate must be each other's, and readable without a
// passphrase. The certificate may be PEM.
func TestModuleKey(t *testing.T) {
	key, cert := moduleKey(t)
	other, _ := moduleKey(t)
	block, _ := pem.Decode(key)
	encrypted := pem.EncodeToMemory(&pem.Block{
		Type:  "ENCRYPTED PRIVATE KEY",
		Bytes: block.Bytes,
	})
	older := pem.EncodeToMemory(&pem.Block{
		Type:    "RSA PRIVATE KEY",
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED"},
		Bytes:   block.Bytes,
	})
	armoured := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for _, x := range []struct {
		name      string
		key, cert []byte
		says      string
	}{
		{"DER", key, cert, ""},
		{"PEM", key, armoured, ""},
		{"no PEM", []byte("x"), cert, "the key is not in PEM"},
		{"encrypted", encrypted, cert, "the key is encrypted, and gpuadm asks for no passphrase"},
		{"encrypted, PKCS 1", older, cert, "the key is encrypted"},
		{"no certificate", key, []byte("x"), "the certificate is not an X.509 certificate"},
		{"the two exchanged", armoured, key, "the certificate is not an X.509 certificate"},
		{"another's", other, cert, "private key does not match public key"},
		{"broken", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), cert, "failed to parse private key"},
	} {
		c := &common{env: env{read: func(name string) ([]byte, error) {
			return map[string][]byte{"k": x.key, "c": x.cert}[name], nil
		}}}
		got, err := c.signing(bakeFlags{moduleKey: "k", moduleCert: "c"})
		switch {
		case x.says == "":
			check.That(t, err == nil && string(got.Certificate) == string(cert) && string(got.Private) == string(key), "%s: %v", x.name, err)
		case !errors.As(err, new(usage)) || !strings.Contains(err.Error(), x.says):
			t.Errorf("%s: %v", x.name, err)
		}

		if x.says == "" {
			trust, err := c.forSecureBoot(bakeFlags{}, got)
			check.That(t, err == nil && trust.Demands() && trust.Trusts(trust.Build) && trust.Build.Name == "site key", "%s: %+v, %v", x.name, trust, err)
		}
	}
}

// TestModuleKeyOutside: an image in which the key lies is not sealed, whichever way its folder is
// named.
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
		err := c.keyOutside(n, bakeFlags{moduleKey: filepath.Join(root, x.key)}, &local.ModuleKey{
			Private:     key,
			Certificate: cert,
		})
		told := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &told) == x.refused, "%s in %s: %v", x.key, x.root, err)
	}
}
