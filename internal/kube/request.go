// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonform "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/rest"
)

const (
	patience = 30 * time.Second // for all tries of one request together
	oneTry   = 12 * time.Second // for one: a server that is silent may have a neighbour that is not
	firstNap = 250 * time.Millisecond
	longNap  = 8 * time.Second
)

// contents has client-go speak JSON only, and know only the objects that are asked for here.
func contents() rest.ClientContentConfig {
	v1 := schema.GroupVersion{Version: "v1"}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1, &corev1.Node{}, &corev1.NodeList{}, &corev1.Event{}, &corev1.Pod{}, &corev1.PodList{})
	scheme.AddUnversionedTypes(v1, &metav1.Status{})
	form := jsonform.NewSerializerWithOptions(jsonform.DefaultMetaFactory, scheme, scheme, jsonform.SerializerOptions{})
	return rest.ClientContentConfig{
		ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON, GroupVersion: v1,
		Negotiator: runtime.NewClientNegotiator(onlyJSON{form, scheme}, v1),
	}
}

// onlyJSON is a runtime.NegotiatedSerializer without YAML, protobuf and CBOR.
type onlyJSON struct {
	form  *jsonform.Serializer
	typer runtime.ObjectTyper
}

func (o onlyJSON) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json",
		EncodesAsText: true, Serializer: o.form, StrictSerializer: o.form,
	}}
}

func (o onlyJSON) EncoderForVersion(e runtime.Encoder, v runtime.GroupVersioner) runtime.Encoder {
	return runtime.WithVersionEncoder{Version: v, Encoder: e, ObjectTyper: o.typer}
}

func (o onlyJSON) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return runtime.WithoutVersionDecoder{Decoder: d}
}

// call is one request and where its answer goes.
type call struct {
	verb, what string // for errors: get, "node x"
	method     string
	path, sub  string
	query      url.Values
	form       string // of the body
	body       []byte
	tests      bool // a JSON patch with a "test"
	again      bool // "it is there already" on a second try means that the first one went well

	into  runtime.Object // one of these three, or none
	raw   any            // JSON
	bytes *[]byte
	date  *time.Time
}

type patienceKey struct{}

// Within bounds the time that all tries of one request may take together, where half a minute is too long; with 0 there is one try.
func Within(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, d)
}

// do makes a request, and again where that may help: the server is busy, or the line was cut.
// A Conflict is not tried again: what was tested has changed, and only the caller knows whether it still wants the same.
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
			asked = true // the plugin's credentials may have run out early: it is asked anew, once
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

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// try makes a request once, within so long.
func (c *Client) try(ctx context.Context, r call, limit time.Duration) *Error {
	ctx, stop := context.WithTimeoutCause(ctx, limit, errSilent)
	defer stop()
	token, bad := c.login.show(ctx)
	if bad != nil {
		return bad
	}
	t := &trace{token: token}
	// Its own tries and its own limiter are off: ours know the budget.
	q := c.rest.Verb(r.method).AbsPath(r.path).MaxRetries(0).WarningHandler(rest.NoWarnings{})
	for key, values := range r.query {
		for _, value := range values {
			q.Param(key, value)
		}
	}
	if r.body != nil {
		q.Body(r.body).SetHeader("Content-Type", r.form)
	}
	result := q.Do(context.WithValue(ctx, traceKey{}, t))
	if r.date != nil {
		*r.date = t.date
	}
	if err := result.Error(); err != nil || t.status == 0 || t.status >= 300 {
		return c.judge(ctx, r, t, err)
	}
	if err := r.take(result, t.body); err != nil {
		return &Error{Why: Refused, Status: t.status, Cause: fmt.Errorf("the answer cannot be read: %w", err)}
	}
	return nil
}

// take hands the answer over.
func (r call) take(result rest.Result, body []byte) error {
	switch {
	case r.into != nil:
		return result.Into(r.into)
	case r.raw != nil:
		return json.Unmarshal(body, r.raw)
	case r.bytes != nil:
		*r.bytes = body
	}
	return nil
}

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
