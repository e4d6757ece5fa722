// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"
)

// Patience is how long all tries of one request take together at most, unless Within shortens it.
const Patience = 30 * time.Second

const (
	oneTry   = 12 * time.Second // for one try: the next may reach another server that answers
	firstNap = 250 * time.Millisecond
	longNap  = 8 * time.Second
)

// call is one request and the target of its answer.
type call struct {
	verb  string // for errors: "get"
	what  string // for errors: "node x"
	right string // that the request needs by RBAC, for errors: "list pods"

	method string
	path   string
	sub    string // the subresource of a Node: "status"
	query  url.Values
	names  []string // of objects, in the path
	form   string   // of the body; "" is application/json
	send   any      // sent as JSON
	into   any      // the target of the answer's JSON
	again  bool     // "already exists" on a retry means that the first try succeeded
}

// Within returns a copy of the client that stops retrying a request after d, for callers to which
// half a minute is too long. With 0 there is one try. It never extends the time.
func (c *Client) Within(d time.Duration) *Client {
	hurried := *c
	hurried.patience = min(c.patience, d)
	return &hurried
}

// Soon limits the time of all requests that use the context. It ends them earlier if a server
// cannot be connected to within the time reach. It does not limit retries: Client.Within does.
func Soon(ctx context.Context, reach, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	ctx, cancel := context.WithCancelCause(ctx)
	unreached := time.AfterFunc(2*limit, func() {
		cancel(fmt.Errorf("no connection within %v", reach))
	})

	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { unreached.Reset(reach) },
		GotConn: func(httptrace.GotConnInfo) { unreached.Stop() },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				unreached.Stop() // the handshake has the time of an answer
			}
		},
	})
	return ctx, func() {
		unreached.Stop()
		end()
	}
}

// do makes a request, and retries it if the server is busy or the connection broke. It does not
// retry a Conflict: the object has changed, and only the caller knows whether it still wants the
// same change.
func (c *Client) do(ctx context.Context, r call) error {
	body, err := r.body()
	if err != nil {
		return c.fail(r, &fault{why: Refused, cause: err}, 0)
	}

	began := c.clock()
	renewed := false // the credentials
	retries := 0
	for {
		limit := c.limit
		if retries > 0 { // the last try gets the remaining time
			limit = min(limit, c.patience-c.clock().Sub(began))
		}

		e := c.try(ctx, r, body, limit)
		switch {
		case e == nil:
			return nil
		case e.status == http.StatusConflict && r.again && retries > 0:
			return nil
		case e.status == http.StatusUnauthorized && !renewed && c.login.forget():
			// The plugin's credentials may have expired early: ask it once more. The server has done
			// nothing, so the next try is as this one, and no retry.
			renewed = true
			continue
		case !e.retry || ctx.Err() != nil:
			return c.fail(r, e, 0)
		}

		nap := c.nap(retries, e.after)
		if c.clock().Sub(began)+nap > c.patience {
			return c.fail(r, e, retries+1)
		}
		if c.sleep(ctx, nap) != nil {
			return c.fail(r, e, 0)
		}
		retries++
	}
}

// body returns the body of a call. It refuses names that no object can have: no other text may get
// into URLs.
func (r call) body() ([]byte, error) {
	for _, name := range r.names {
		if !validName(name) {
			return nil, fmt.Errorf("%.80q is not the name of an object", name)
		}
	}

	if r.send == nil {
		return nil, nil
	}
	text, err := json.Marshal(r.send)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	return text, nil
}

// validName says whether an object may have the name.
// Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
func validName(name string) bool {
	const characters = "abcdefghijklmnopqrstuvwxyz0123456789-."
	if name == "" || len(name) > 253 {
		return false
	}
	return !strings.Contains(name, "..") && strings.Trim(name, characters) == ""
}

// nap returns the pause after a try: as long as the server asks, else a growing time; with jitter,
// since many machines may fail together.
func (c *Client) nap(try int, after time.Duration) time.Duration {
	nap := min(longNap, firstNap<<min(try, 10))
	nap = nap/2 + time.Duration(c.jitter()*float64(nap)/2)
	if after > 0 {
		nap = after + time.Duration(c.jitter()*float64(min(after, time.Second)))
	}
	return nap
}

// try makes a request once, within limit.
func (c *Client) try(ctx context.Context, r call, body []byte, limit time.Duration) *fault {
	ctx, stop := context.WithTimeoutCause(ctx, limit, errSilent)
	defer stop()

	token, bad := c.login.bearer(ctx)
	if bad != nil {
		return bad
	}
	a, err := c.send(ctx, r, body, token)
	if err != nil || a.status >= 300 {
		return c.judge(ctx, r, a, err)
	}

	if r.into == nil {
		return nil
	}
	if err := json.Unmarshal(a.body, r.into); err != nil {
		return &fault{
			why:    Refused,
			status: a.status,
			cause:  fmt.Errorf("the answer cannot be read: %w", err),
		}
	}

	return nil
}

// answer is the server's answer to one try. Its status is 0 if there was none.
type answer struct {
	status int
	header http.Header
	date   time.Time
	body   []byte
}

// send makes one request and reads the whole answer, up to maxAnswer.
func (c *Client) send(ctx context.Context, r call, body []byte, token string) (answer, error) {
	at := c.base.JoinPath(r.path)
	at.RawQuery = r.query.Encode()
	request, err := http.NewRequestWithContext(ctx, r.method, at.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", agent)
	if body != nil {
		request.Header.Set("Content-Type", cmp.Or(r.form, "application/json"))
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}

	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()

	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil: // the server has begun its answer, and not ended it
		return answer{}, fmt.Errorf("%w: %w", Slow, err)
	case err != nil:
		return answer{}, err
	case len(text) > maxAnswer:
		return answer{}, errLarge
	}

	date, _ := http.ParseTime(response.Header.Get("Date"))
	return answer{
		status: response.StatusCode,
		header: response.Header,
		date:   date,
		body:   text,
	}, nil
}

// maxAnswer is the largest size of an answer in bytes: the 250 pods of a node take far less.
const maxAnswer = 16 << 20

var errLarge = fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)

var errSilent = errors.New("no answer in time")
