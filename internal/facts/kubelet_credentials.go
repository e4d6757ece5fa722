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

// credentials finds out whether the machine has joined: the kubeconfig, and the files that it names
// as kubelet's credentials, exist. It also finds out until when they are valid. gpuadm keeps none
// of their bytes: a key may be among them. A file that gpuadm, without root, cannot read or look at
// counts as valid: to join a second time would be worse. It returns the node's name if a
// certificate has it.
func (k *Kubelet) credentials(g *gathering, kubeconfig string) (node string) {
	k.Kubeconfig = kubeconfig
	if kubeconfig == "" {
		return ""
	}
	data, exists := g.peek(kubeconfig)
	if data == nil {
		k.Joined = exists
		return ""
	}

	user := kube.CredentialsIn(data)
	absolute := func(name string) string {
		if path.IsAbs(name) {
			return name
		}
		return path.Join(path.Dir(kubeconfig), name) // kubeconfigs name files from their own folder
	}

	mayExist := func(name string) bool {
		_, err := g.v.Stat(absolute(name))
		return err == nil || !missing(err)
	}

	certificate, unreadable := g.clientCertificate(user, absolute)
	if certificate != nil {
		k.Begins = certificate.NotBefore.UTC()
		k.Expired = certificate.NotAfter.UTC()
		k.Identity = certificate.Subject.CommonName
	}

	switch {
	case user.Token != "":
		k.Joined = true
	case user.TokenFile != "":
		k.Joined = mayExist(user.TokenFile)
	case user.Exec != nil && user.Exec.Command != "":
		command := user.Exec.Command
		if strings.Contains(command, "/") {
			command = absolute(command)
		}
		k.Joined = Runs(g.v, command, "/opt/bin")
	case unreadable || certificate != nil:
		k.Joined = user.Key != "" || user.KeyFile != "" && mayExist(user.KeyFile)
	}

	name, isNode := strings.CutPrefix(k.Identity, "system:node:")
	if !isNode {
		return ""
	}
	return name
}

// clientCertificate returns the certificate of a user, which is in the kubeconfig or in a file; nil
// if there is none, or if gpuadm cannot read the file.
func (g *gathering) clientCertificate(
	user kube.Credentials, absolute func(string) string,
) (certificate *x509.Certificate, unreadable bool) {
	if user.Cert != "" || user.CertFile == "" {
		text, _ := base64.StdEncoding.DecodeString(user.Cert)
		return firstCertificate(text), false
	}

	text, exists := g.peek(absolute(user.CertFile))
	return firstCertificate(text), exists && text == nil
}

// peek returns a file's bytes, nil if they cannot be read, and whether the file exists.
func (g *gathering) peek(name string) (data []byte, exists bool) {
	data, err := g.v.ReadFile(name)
	if err != nil {
		return data, !missing(err)
	}
	if data == nil || len(data) > maxParsed {
		return []byte{}, true
	}
	return data, true
}

// firstCertificate returns the first certificate in a PEM text, which is the client's own; nil if
// there is none.
func firstCertificate(data []byte) *x509.Certificate {
	for len(data) <= maxParsed {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		return certificate
	}
	return nil
}
