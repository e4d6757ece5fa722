// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// patience is how long gpuadm waits for a metadata service. At boot it may be 20 s late: routes
	// and firewalls come first.
	patience = 25 * time.Second
	// oneTry is the limit of the first try, twoTries of each later one. The service runs in the
	// machine's own hypervisor and answers within milliseconds.
	oneTry, twoTries = time.Second, 2 * time.Second
	// metadataMost is the largest answer of a metadata service in bytes. User data, the longest,
	// has 16 KiB at most.
	metadataMost = 256 << 10
	// apiMost is the largest answer of a cloud's API in bytes, such as a description of all
	// instance types.
	apiMost = 4 << 20
	// clockBound is the largest allowed error of the clock. AWS refuses signed requests from five
	// minutes on.
	// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
	clockBound = 5 * time.Minute
)

// errTooLong reports an answer that is longer than any valid one.
var errTooLong = errors.New("the answer is longer than any that the service gives")

// door sends requests through the machine's own transport, with limits, and remembers the result of
// the last one: SDKs hide details that an error message needs.
type door struct {
	through http.RoundTripper
	now     func() time.Time
	most    int64

	mu   sync.Mutex
	last outcome
}

// outcome is the result of a request.
type outcome struct {
	method, path, host string
	connected          bool // the server accepted the connection
	status             int  // 0: no answer
	tooLong            bool
	clockOff           time.Duration // the machine's clock, ahead of the answer's Date
}

// open returns a door.
func open(v host.View, w host.Web, most int64) (*door, error) {
	through, err := v.AskWeb(w)
	if err != nil {
		return nil, err
	}
	return &door{through: through, now: v.Now, most: most}, nil
}

// client returns an HTTP client that follows no redirect.
func (d *door) client() *http.Client {
	return &http.Client{Transport: d, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// outcome returns the result of the last request.
func (d *door) outcome() outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

func (d *door) set(change func(*outcome)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.last)
}

// RoundTrip is http.RoundTripper's.
func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	d.set(func(f *outcome) { *f = outcome{method: r.Method, path: r.URL.Path, host: r.URL.Hostname()} })
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { d.set(func(f *outcome) { f.connected = true }) },
	})
	answer, err := d.through.RoundTrip(r.WithContext(ctx))
	if err == nil {
		if err = ctx.Err(); err != nil { // a simulated server ignores the context
			answer.Body.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	d.set(func(f *outcome) {
		f.connected, f.status = true, answer.StatusCode
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			f.clockOff = d.now().Sub(date)
		}
	})
	answer.Body = &bounded{ReadCloser: answer.Body, left: d.most, lacks: answer.ContentLength, over: func() { d.set(func(f *outcome) { f.tooLong = true }) }}
	return answer, nil
}

// bounded is a body with a limit on the bytes that are read.
type bounded struct {
	io.ReadCloser
	left  int64
	lacks int64 // the remaining bytes by Content-Length; below 0 without that header
	over  func()
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
	if b.lacks -= int64(n); err == io.EOF && b.lacks > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// tries calls do until it succeeds, final says that a retry is useless, or patience ends. The
// pauses grow to two seconds with jitter, so that a thousand machines that start together do not
// ask together.
func tries(ctx context.Context, do func(context.Context) error, final func(error) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for limit, most := oneTry, 200*time.Millisecond; ; limit, most = twoTries, min(2*most, 2*time.Second) {
		once, done := context.WithTimeout(ctx, limit)
		err := do(once)
		done()
		if err == nil || final(err) {
			return err
		}
		if host.Pause(ctx, most/2+rand.N(most/2)) != nil {
			return err
		}
	}
}

// wrongClock returns the error for a clock whose signed requests AWS would refuse; nil if the clock
// is good enough.
func wrongClock(off time.Duration, than string) *trouble.Error {
	if off.Abs() < clockBound {
		return nil
	}
	side := "ahead of"
	if off < 0 {
		side = "behind"
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot sign requests: the machine's clock is %s %s %s", off.Round(time.Second).Abs(), side, than),
		Because: []string{
			"AWS refuses requests whose time is more than five minutes off, and the cluster's certificates may count as not valid yet",
		},
		Try: []string{
			"chronyc tracking    (or timedatectl timesync-status): is time synchronised, and from where",
			"on EC2, let chrony use 169.254.169.123: it is there without any route",
			"chronyc makestep    sets the clock at once",
		},
		Passing: true,
	}
}
