// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// What a join needs beside the requests about a Node: credentials that lie in no kubeconfig yet, and objects of other kinds.

// DoWithToken makes a client that may change what is in the cluster, with a bearer token in memory.
func DoWithToken(h host.Host, server string, roots []byte, token string, via host.Via) (*Client, error) {
	l := &login{view: h, token: token, about: "the token that was given"}
	return start(h, h.DoWeb, setting{server: server, roots: roots, via: via, login: l})
}

// WithPair makes a client that looks, with a certificate and its key in memory, both PEM.
func WithPair(v host.View, server string, roots, cert, key []byte, via host.Via) (*Client, error) {
	l := &login{view: v, certFile: "client-certificate-data", certPEM: cert, keyPEM: key, about: "the certificate that was given"}
	return start(v, v.AskWeb, setting{server: server, roots: roots, via: via, login: l})
}

// Post sends a JSON object to any path, and returns the answer. An object that is there already is a Conflict.
func (c *Client) Post(ctx context.Context, path string, object []byte) (answer []byte, err error) {
	r := call{verb: "post to", what: path, method: http.MethodPost, form: "application/json", body: object, bytes: &answer}
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.Contains(u.Path, "..") {
		return nil, c.fail(r, &Error{Why: Refused, Cause: fmt.Errorf("internal error: it is no path")})
	}
	r.path, r.query = u.Path, u.Query()
	err = c.do(ctx, r)
	return answer, err
}
