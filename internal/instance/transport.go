// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

const (
	// maxMetadata is the largest answer of a metadata service in bytes. User data, the longest, has
	// 16 KiB at most.
	maxMetadata = 256 << 10
	// maxAPI is the largest answer of a cloud's API in bytes, such as a description of all instance
	// types.
	maxAPI = 4 << 20
)

// errTooLong reports an answer that is longer than any valid one.
var errTooLong = errors.New("the answer is longer than any that the service gives")

// transport sends requests through the machine's own transport, with a limit on the answer, and
// remembers the result of the last one: SDKs hide details that an error message needs.
type transport struct {
	through http.RoundTripper
	now     func() time.Time
	limit   int64 // of an answer, in bytes

	mu   sync.Mutex
	last outcome
}

// outcome is the result of a request.
type outcome struct {
	method    string
	path      string
	host      string
	connected bool          // the server accepted the connection
	status    int           // 0: no answer
	tooLong   bool          // the answer
	clockOff  time.Duration // the machine's clock, ahead of the answer's Date
}

// newTransport returns a transport whose answers have at most limit bytes.
func newTransport(v host.View, w host.Web, limit int64) (*transport, error) {
	through, err := v.AskWeb(w)
	if err != nil {
		return nil, err
	}
	return &transport{through: through, now: v.Now, limit: limit}, nil
}

// client returns an HTTP client that follows no redirect.
func (t *transport) client() *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// outcome returns the result of the last request.
func (t *transport) outcome() outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *transport) note(change func(*outcome)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.last)
}

// RoundTrip is http.RoundTripper's.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.note(func(last *outcome) {
		*last = outcome{
			method: r.Method,
			path:   r.URL.Path,
			host:   r.URL.Hostname(),
		}
	})
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			t.note(func(last *outcome) { last.connected = true })
		},
	})

	answer, err := t.through.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // a simulated server ignores the context
		answer.Body.Close()
		return nil, err
	}

	t.note(func(last *outcome) {
		last.connected = true
		last.status = answer.StatusCode
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			last.clockOff = t.now().Sub(date)
		}
	})
	answer.Body = &bounded{
		ReadCloser: answer.Body,
		left:       t.limit,
		missing:    answer.ContentLength,
		over:       func() { t.note(func(last *outcome) { last.tooLong = true }) },
	}
	return answer, nil
}

// bounded is a body with a limit on the bytes that are read.
type bounded struct {
	io.ReadCloser
	left    int64
	missing int64 // the remaining bytes by Content-Length; below 0 without that header
	over    func()
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.ReadCloser.Read(one[:]); n == 0 {
			return 0, err
		}
		b.over()
		return 0, errTooLong
	}

	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.missing -= int64(n)
	if err == io.EOF && b.missing > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
