// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// credentials says whether a kubeconfig is there with what it names to prove who we are, and until when that holds. Its
// bytes, a key may be among them, are kept nowhere. What is there and cannot be read, by who is not root, counts as good:
// to join once more would be worse. It returns the node's name where a certificate says it.
func (k *Kubelet) credentials(l *look, kubeconfig string) (node string) {
	k.Kubeconfig = kubeconfig
	if kubeconfig == "" {
		return ""
	}
	data, there := l.peek(kubeconfig)
	if data == nil {
		k.Joined = there
		return ""
	}
	u := readKubeconfig(data)
	at := func(name string) string {
		if path.IsAbs(name) {
			return name
		}
		return path.Join(path.Dir(kubeconfig), name) // kubeconfigs name files from their own folder
	}
	cert, _ := base64.StdEncoding.DecodeString(u.CertData)
	hidden := false
	if u.CertData == "" && u.Cert != "" {
		cert, there = l.peek(at(u.Cert))
		hidden = there && cert == nil
	}
	if c := clientCertificate(cert); c != nil {
		k.Expired = c.NotAfter.UTC()
		if name, ok := strings.CutPrefix(c.Subject.CommonName, "system:node:"); ok {
			node = name
		}
	}
	switch {
	case u.Token != "":
		k.Joined = true
	case u.TokenFile != "":
		k.Joined = l.has(at(u.TokenFile))
	case u.Exec.Command != "":
		k.Joined = l.command(at, u.Exec.Command)
	case hidden || !k.Expired.IsZero():
		k.Joined = u.KeyData != "" || u.Key != "" && l.has(at(u.Key))
	}
	return node
}

// peek returns a file's bytes, nil if they cannot be had, and whether the file is there.
func (l *look) peek(name string) (data []byte, there bool) {
	data, err := l.v.ReadFile(name)
	switch {
	case err == nil && len(data) > maxParsed:
		return []byte{}, true
	case err == nil && data == nil:
		return []byte{}, true
	}
	return data, err == nil || !missing(err)
}

// command says whether a kubeconfig's credential program is there.
func (l *look) command(at func(string) string, name string) bool {
	if strings.Contains(name, "/") {
		return l.has(at(name))
	}
	for _, dir := range [...]string{"/usr/local/sbin/", "/usr/local/bin/", "/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/", "/opt/bin/"} {
		if l.has(dir + name) {
			return true
		}
	}
	return false
}

// kubeUser is what a kubeconfig says of a user.
type kubeUser struct {
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	Exec      struct {
		Command string `yaml:"command"`
	} `yaml:"exec"`
}

// readKubeconfig returns the user of the current context; an empty one if the file is broken or names none.
func readKubeconfig(data []byte) kubeUser {
	var c struct {
		Current  string `yaml:"current-context"`
		Contexts []struct {
			Name    string `yaml:"name"`
			Context struct {
				User string `yaml:"user"`
			} `yaml:"context"`
		} `yaml:"contexts"`
		Users []struct {
			Name string   `yaml:"name"`
			User kubeUser `yaml:"user"`
		} `yaml:"users"`
	}
	if yaml.Unmarshal(data, &c) != nil {
		return kubeUser{}
	}
	for _, at := range c.Contexts {
		if at.Name != c.Current {
			continue
		}
		for _, u := range c.Users {
			if u.Name == at.Context.User {
				return u.User
			}
		}
	}
	return kubeUser{}
}

// clientCertificate returns the first certificate of a PEM file, which is the client's own; nil if there is none.
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
