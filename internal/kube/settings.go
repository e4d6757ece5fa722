// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/host"
)

// From says where a client's server and credentials come from. One of Kubeconfig and Pod is set.
type From struct {
	Kubeconfig string   // a kubeconfig on the machine: kubelet's own, most often
	Pod        bool     // the ServiceAccount of the pod that we run in
	Judged     bool     // an operator names the kubeconfig: gpuadm checks who owns its files
	Via        host.Via // proxies, and certificates to trust where the kubeconfig names none
}

// settings has all inputs of a client.
type settings struct {
	from   string // the file that they were read from, for errors; "" if there is none
	server string
	roots  []byte // PEM
	caFile string // the file with them, if the kubeconfig does not contain them
	via    host.Via
	login  *login
}

// settingsFrom reads the server and the credentials of a client.
func settingsFrom(v host.View, from From) (s settings, err error) {
	if from.Pod {
		s, err = podSettings(v)
	} else {
		s, err = kubeconfigSettings(v, from)
	}
	if err != nil {
		return s, err
	}

	if s.via.HTTPS == "" { // else the kubeconfig names a proxy of its own
		s.via = from.Via
	}
	s.via.CAFile = from.Via.CAFile
	return s, nil
}

// mark identifies settings by all inputs of a connection or a credential. There is none while a
// certificate, the client's own or a trusted one, cannot be read.
func (s settings) mark() (mark [sha256.Size]byte, ok bool) {
	l := s.login

	var trusted []byte
	if s.roots == nil && s.via.CAFile != "" { // the CA file may change under the same name
		text, err := readSmall(l.view, s.via.CAFile)
		if err != nil {
			return mark, false
		}
		trusted = text
	}

	var client [][]byte
	if l.hasCertificate() { // its file is a link whose target kubelet changes
		pair, bad := l.keyPair()
		if bad != nil {
			return mark, false
		}
		client = pair.Certificate
	}

	inputs := fmt.Appendf(nil, "%q %#v %q %q %q %q %q %q %q %#v %q %q",
		s.server, s.via,
		l.token, l.tokenFile,
		l.certFile, l.keyFile, s.roots, l.certPEM, l.keyPEM,
		l.exec,
		trusted, client)
	return sha256.Sum256(inputs), true
}

// maxSmall is the largest size in bytes of a kubeconfig, a certificate or a token.
const maxSmall = 1 << 20

// readSmall reads a file of at most maxSmall bytes.
func readSmall(v host.View, name string) ([]byte, error) {
	if i, err := v.Stat(name); err == nil && i.Size > maxSmall {
		return nil, fmt.Errorf("cannot read %s: it is larger than %d MiB", name, maxSmall>>20)
	}
	return v.ReadFile(name)
}
