// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ErrTouches is the error of a read-only transport for a request that would change something.
var ErrTouches = errors.New("internal error: a request that changes something was made by what only looks")

// OnlyLooks makes a transport to w read-only: it refuses requests that change something.
func OnlyLooks(t http.RoundTripper, w Web) http.RoundTripper {
	return looking{through: t, queries: w.Queries}
}

type looking struct {
	through http.RoundTripper
	queries bool
}

func (l looking) RoundTrip(r *http.Request) (*http.Response, error) {
	if !l.queries && !changesNothing(r) {
		return nil, fmt.Errorf("%w: %s %s", ErrTouches, r.Method, r.URL.Path)
	}
	return l.through.RoundTrip(r)
}

// changesNothing says whether a request only asks. Some protocols ask by methods that elsewhere
// change things.
func changesNothing(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPut: // a session token of EC2's metadata service, version 2
		return r.URL.Path == "/latest/api/token"
	case http.MethodPost: // who am I, and what may I: nothing is stored
		return r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews" ||
			r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	}
	return false
}

// CloseIdleConnections lets http.Client close the connections of the inner transport.
func (l looking) CloseIdleConnections() {
	if c, ok := l.through.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// AskSocket gets what a daemon of the machine says over HTTP at its Unix socket: at most MaxAnswer.
// The error is a Later if no daemon runs for the machine, as in a root folder.
func AskSocket(ctx context.Context, v View, socket, path string) ([]byte, error) {
	through, err := v.AskWeb(Web{Socket: socket})
	if err != nil {
		return nil, err
	}

	client := http.Client{Transport: through}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask at %s: %w", socket, err)
	}

	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("cannot ask at %s: HTTP status %s", socket, res.Status)
	case len(body) > MaxAnswer:
		return nil, fmt.Errorf("cannot ask at %s: the answer has more than %d bytes", socket, MaxAnswer)
	}

	return body, nil
}

// MaxAnswer is the size in bytes above which an answer is refused.
const MaxAnswer = 16 << 20
