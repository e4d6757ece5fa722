// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	patience = 30 * time.Second // for all tries of one request together
	oneTry   = 12 * time.Second // for one: a server that is silent may have a neighbour that is not
	firstNap = 250 * time.Millisecond
	longNap  = 8 * time.Second
)

// call is one request and where its answer goes.
type call struct {
	verb, what string // for errors: get, "node x"
	method     string
	path, sub  string
	query      url.Values
	form       string // of the body
	body       []byte
	again      bool // "it is there already" on a second try means that the first one went well

	into any // what its JSON is decoded into
}

type patienceKey struct{}

// Within bounds the time that all tries of one request may take together, where half a minute is too long; with 0 there is one try.
func Within(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, d)
}

// do makes a request, and again where that may help: the server is busy, or the line was cut.
// A Conflict is not tried again: the object has changed, and only the caller knows whether it still wants the same.
func (c *Client) do(ctx context.Context, r call) error {
	limit, bounded := ctx.Value(patienceKey{}).(time.Duration)
	if !bounded {
		limit = patience
	}
	began, asked := c.clock(), false
	for try := 0; ; try++ {
		one := c.limit
		if left := limit - c.clock().Sub(began); try > 0 { // the last try has what is left
			one = min(one, left)
		}
		e := c.try(ctx, r, one)
		switch {
		case e == nil:
			return nil
		case e.Status == http.StatusConflict && r.again && try > 0:
			return nil
		case e.Status == http.StatusUnauthorized && !asked && c.login.forget():
			asked = true // the plugin's credentials may have run out early: it is asked once more
			continue
		case !e.retry || ctx.Err() != nil:
			return c.fail(r, e)
		}
		nap := c.nap(try, e.after)
		if c.clock().Sub(began)+nap > limit {
			e.tries = try + 1
			return c.fail(r, e)
		}
		if c.sleep(ctx, nap) != nil {
			return c.fail(r, e)
		}
	}
}

// nap is how long to wait after a try: what the server says, or longer each time; never the same on two machines that failed together.
func (c *Client) nap(try int, after time.Duration) time.Duration {
	nap := min(longNap, firstNap<<min(try, 10))
	nap = nap/2 + time.Duration(c.jitter()*float64(nap)/2)
	if after > 0 {
		nap = after + time.Duration(c.jitter()*float64(min(after, time.Second)))
	}
	return nap
}

// try makes a request once, within so long.
func (c *Client) try(ctx context.Context, r call, limit time.Duration) *Error {
	ctx, stop := context.WithTimeoutCause(ctx, limit, errSilent)
	defer stop()
	token, bad := c.login.show(ctx)
	if bad != nil {
		return bad
	}
	t, err := c.send(ctx, r, token)
	if err != nil || t.status >= 300 {
		return c.judge(ctx, r, t, err)
	}
	if r.into != nil {
		if err := json.Unmarshal(t.body, r.into); err != nil {
			return &Error{Why: Refused, Status: t.status, Cause: fmt.Errorf("the answer cannot be read: %w", err)}
		}
	}
	return nil
}

// answer is what the server said to one try. Its status is 0 where it said nothing.
type answer struct {
	status int
	header http.Header
	date   time.Time
	body   []byte
}

// send makes one request and reads the whole answer, up to maxAnswer.
func (c *Client) send(ctx context.Context, r call, token string) (a answer, err error) {
	at := c.base.JoinPath(r.path)
	at.RawQuery = r.query.Encode()
	q, err := http.NewRequestWithContext(ctx, r.method, at.String(), bytes.NewReader(r.body))
	if err != nil {
		return a, err
	}
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", agent)
	if r.body != nil {
		q.Header.Set("Content-Type", r.form)
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(q)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errLarge
	}
	if err != nil {
		return a, err
	}
	a = answer{status: resp.StatusCode, header: resp.Header, body: body}
	a.date, _ = http.ParseTime(resp.Header.Get("Date"))
	return a, nil
}

// maxAnswer is the size in bytes above which an answer is refused: 250 pods of a node are far below.
const maxAnswer = 16 << 20

var errLarge = fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)

var errSilent = errors.New("no answer in time")

// retryAfter reads the header: seconds, or a date.
func retryAfter(header string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(header); err == nil {
		return time.Duration(min(max(n, 0), 1<<20)) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
