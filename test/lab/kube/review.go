// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/gpuadm/gpuadm/test/cloudfake"
)

// The API server asks a webhook of this process for the owner of a bearer token that it does not
// know itself, as EKS's asks the authenticator for AWS's identities. The cluster that a token is
// signed for tells the cloud.
const (
	reviewAt     = "127.0.0.1:8443" // in the cluster's network
	reviewConfig = "review.kubeconfig"
)

// reviews are the clouds that vouch for their machines.
type reviews struct {
	mutex  sync.Mutex
	clouds map[string]*cloudfake.Fake // by the name of the cluster that tokens are for
}

// add has the API server take the tokens of a cloud's machine for its node.
func (r *reviews) add(f *cloudfake.Fake) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.clouds == nil {
		r.clouds = map[string]*cloudfake.Fake{}
	}
	r.clouds[f.Cluster.Name] = f
}

// of is the cloud that vouches for a token, or one that says why it does not.
func (r *reviews) of(token string) *cloudfake.Fake {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, f := range r.clouds {
		if f.CheckToken(token) == nil {
			return f
		}
	}

	return &cloudfake.Fake{}
}

// ServeHTTP answers a TokenReview.
func (r *reviews) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(io.LimitReader(request.Body, 1<<20))
	var ask struct{ Spec struct{ Token string } }
	if err == nil {
		err = json.Unmarshal(body, &ask)
	}
	if err != nil {
		http.Error(w, "cannot read the TokenReview", http.StatusBadRequest)
		return
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	r.of(ask.Spec.Token).Review().ServeHTTP(w, request)
}

// serveReviews starts the webhook, and writes where it is for the API server.
func (c *Cluster) serveReviews() error {
	listener, err := c.network.listen(reviewAt)
	if err != nil {
		return fmt.Errorf("cannot listen for TokenReviews: %w", err)
	}
	c.network.listeners = append(c.network.listeners, listener)
	go func() { _ = http.Serve(listener, &c.reviews) }() // until it is closed
	text, err := json.Marshal(Object{
		"apiVersion": "v1", "kind": "Config", "current-context": "review",
		"clusters": []Object{{"name": "review", "cluster": Object{"server": "http://" + reviewAt + "/"}}},
		"users":    []Object{{"name": "review", "user": Object{}}},
		"contexts": []Object{{"name": "review", "context": Object{"cluster": "review", "user": "review"}}},
	})
	if err == nil {
		err = os.WriteFile(c.file(reviewConfig), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the webhook's kubeconfig: %w", err)
	}
	return nil
}
