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

	user := kube.CredentialsIn(data)
	absolute := func(name string) string {
		if path.IsAbs(name) {
			return name
		}
		return path.Join(path.Dir(kubeconfig), name) // kubeconfigs name files from their own folder
	}

	certificate, _ := base64.StdEncoding.DecodeString(user.Cert)
	unreadable := false
	if user.Cert == "" && user.CertFile != "" {
		certificate, there = g.peek(absolute(user.CertFile))
		unreadable = there && certificate == nil
	}
	if c := clientCertificate(certificate); c != nil {
		k.Begins = c.NotBefore.UTC()
		k.Expired = c.NotAfter.UTC()
		k.Identity = c.Subject.CommonName
		if name, isNode := strings.CutPrefix(k.Identity, "system:node:"); isNode {
			node = name
		}
	}

	switch {
	case user.Token != "":
		k.Joined = true
	case user.TokenFile != "":
		k.Joined = g.exists(absolute(user.TokenFile))
	case user.Exec != nil && user.Exec.Command != "":
		command := user.Exec.Command
		if strings.Contains(command, "/") {
			command = absolute(command)
		}
		k.Joined = Runs(g.v, command, "/opt/bin")
	case unreadable || !k.Expired.IsZero():
		k.Joined = user.Key != "" || user.KeyFile != "" && g.exists(absolute(user.KeyFile))
	}
	return node
}

// peek returns a file's bytes, nil if they cannot be read, and whether the file is there.
func (g *gathering) peek(name string) (data []byte, there bool) {
	data, err := g.v.ReadFile(name)
	if err != nil {
		return data, !missing(err)
	}
	if data == nil || len(data) > maxParsed {
		return []byte{}, true
	}
	return data, true
}

// clientCertificate returns the first certificate of a PEM file, which is the client's own; nil if
// there is none.
func clientCertificate(data []byte) *x509.Certificate {
	for len(data) <= maxParsed {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		return c
	}
	return nil
}
