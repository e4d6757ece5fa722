// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Clients are those of one run on one machine. They are made once for each kubeconfig and kept while it says the same: a
// pool of thousands of nodes that come up together then costs the API server one TLS handshake for each client, not for each
// request, and an exec plugin is run once. The zero Clients is ready for use; with nil each request makes its own.
type Clients struct {
	mu   sync.Mutex
	made map[string]kept
}

// kept is a client, and the mark of what it was made of.
type kept struct {
	client *Client
	mark   [sha256.Size]byte
}

// Ask is the package's Ask.
func (c *Clients) Ask(v host.View, from From) (*Client, error) {
	return c.client("ask", v, v.AskWeb, from)
}

// Do is the package's Do.
func (c *Clients) Do(h host.Host, from From) (*Client, error) {
	return c.client("do", h, h.DoWeb, from)
}

func (c *Clients) client(verb string, v host.View, w web, from From) (*Client, error) {
	v = host.Machine(v) // a client is kept, and reads its credentials again for each request
	s, err := settingOf(v, from)
	if err != nil {
		return nil, err
	}
	mark, ok := s.mark()
	if c == nil || !ok {
		return start(v, w, s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	place := fmt.Sprintf("%s %+v", verb, from)
	old := c.made[place]
	if old.client != nil && old.mark == mark {
		return old.client, nil
	}
	made, err := start(v, w, s)
	if err != nil {
		return nil, err
	}
	if old.client != nil {
		old.client.http.CloseIdleConnections()
	}
	if c.made == nil {
		c.made = map[string]kept{}
	}
	c.made[place] = kept{made, mark}
	return made, nil
}

// mark tells settings apart, by all that a connection or a credential depends on. There is none while a certificate, its own or those
// that it trusts, cannot be read.
func (s setting) mark() (mark [sha256.Size]byte, ok bool) {
	l, trusted, pair := s.login, []byte(nil), new(tls.Certificate)
	if s.roots == nil && s.via.CAFile != "" { // whom it trusts may change under the same name
		var err error
		if trusted, err = small(l.view, s.via.CAFile); err != nil {
			return mark, false
		}
	}
	if l.certFile != "" { // kubelet changes what it links to
		var bad *fault
		if pair, bad = l.pair(); bad != nil {
			return mark, false
		}
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q %#v %q %q %q %q %q %q %q %#v %q %q",
		s.server, s.via, l.token, l.tokenFile, l.certFile, l.keyFile, s.roots, l.certPEM, l.keyPEM, l.exec, trusted, pair.Certificate)), true
}
