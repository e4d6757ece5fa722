// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// Clients are the clients of one run on one machine. There is one for each kubeconfig, kept while
// the kubeconfig is unchanged: when thousands of nodes start together, the API server makes one TLS
// handshake for each client, not for each request, and an exec plugin runs once. The zero Clients
// is ready for use.
type Clients struct {
	OneTry bool // no request is retried: for tests with a server that never answers

	mu   sync.Mutex
	made map[string]kept
}

// kept is a client, and the mark of its settings.
type kept struct {
	client *Client
	mark   [sha256.Size]byte
}

// Ask returns a client that only reads.
func (c *Clients) Ask(v host.View, from From) (*Client, error) {
	return c.client("ask", v, v.AskWeb, from)
}

// Do returns a client that may change objects of the cluster.
func (c *Clients) Do(h host.Host, from From) (*Client, error) {
	return c.client("do", h, h.DoWeb, from)
}

func (c *Clients) client(verb string, v host.View, open web, from From) (*Client, error) {
	client, err := c.keptClient(verb, v, open, from)
	if err == nil && c.OneTry {
		client = client.Within(0)
	}
	return client, err
}

// keptClient returns the kept client if its settings are unchanged, else a new one, and keeps that.
func (c *Clients) keptClient(verb string, v host.View, open web, from From) (*Client, error) {
	v = view.Machine(v) // a client is kept, and reads its credentials again for each request
	s, err := settingsFrom(v, from)
	if err != nil {
		return nil, err
	}
	mark, ok := s.mark()
	if !ok {
		return newClient(v, open, s)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	place := fmt.Sprintf("%s %+v", verb, from)
	old := c.made[place]
	if old.client != nil && old.mark == mark {
		return old.client, nil
	}

	made, err := newClient(v, open, s)
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
