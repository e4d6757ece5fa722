// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/kube"
)

// credentials says whether the kubeconfig, and the files that it names as kubelet's credentials,
// are there, and until when they are valid. gpuadm keeps none of their bytes: a key may be among
// them. A file that is there and that gpuadm, without root, cannot read counts as valid: to join a
// second time would be worse. It returns the node's name where a certificate has it.
func (k *Kubelet) credentials(g *gathering, kubeconfig string) (node string) {
	k.Kubeconfig = kubeconfig
	if kubeconfig == "" {
		return ""
	}
	data, there := g.peek(kubeconfig)
	if data == nil {
		k.Joined = there
		return ""
	}
	u := kube.CredentialsIn(data)
	at := func(name string) string {
		if path.IsAbs(name) {
			return name
		}
		return path.Join(path.Dir(kubeconfig), name) // kubeconfigs name files from their own folder
	}
	cert, _ := base64.StdEncoding.DecodeString(u.Cert)
	hidden := false
	if u.Cert == "" && u.CertFile != "" {
		cert, there = g.peek(at(u.CertFile))
		hidden = there && cert == nil
	}
	if c := clientCertificate(cert); c != nil {
		k.Begins, k.Expired, k.Identity = c.NotBefore.UTC(), c.NotAfter.UTC(), c.Subject.CommonName
		if name, ok := strings.CutPrefix(k.Identity, "system:node:"); ok {
			node = name
		}
	}
	switch {
	case u.Token != "":
		k.Joined = true
	case u.TokenFile != "":
		k.Joined = g.exists(at(u.TokenFile))
	case u.Exec != nil && u.Exec.Command != "":
		if strings.Contains(u.Exec.Command, "/") {
			u.Exec.Command = at(u.Exec.Command)
		}
		k.Joined = Runs(g.v, u.Exec.Command, "/opt/bin")
	case hidden || !k.Expired.IsZero():
		k.Joined = u.Key != "" || u.KeyFile != "" && g.exists(at(u.KeyFile))
	}
	return node
}

// peek returns a file's bytes, nil if they cannot be read, and whether the file is there.
func (g *gathering) peek(name string) (data []byte, there bool) {
	data, err := g.v.ReadFile(name)
	switch {
	case err == nil && len(data) > maxParsed:
		return []byte{}, true
	case err == nil && data == nil:
		return []byte{}, true
	}
	return data, err == nil || !missing(err)
}

// clientCertificate returns the first certificate of a PEM file, which is the client's own; nil if
// there is none.
func clientCertificate(data []byte) *x509.Certificate {
	for len(data) <= maxParsed {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil
		}
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil
			}
			return c
		}
	}
	return nil
}
