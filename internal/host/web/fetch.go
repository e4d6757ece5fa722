// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// What another try does not help: the server would send the same bytes again, and as slowly.
var (
	errSize      = errors.New("it is larger than expected")
	errDigest    = errors.New("its SHA-256 is not the expected one")
	errLong      = fmt.Errorf("it takes too long for its size: %v and a second for each %d KiB are enough", fetchGrace, fetchRate>>10)
	errDowngrade = errors.New("it redirects from https to http, or without end")
)

const (
	fetchTries   = 4
	fetchPause   = time.Second      // before the second try; doubled before each further one
	fetchSilence = 30 * time.Second // without a byte: the other side has gone

	// A server that sends a byte now and then would hold an apply, and a boot, for ever.
	fetchGrace = 5 * time.Minute // for a download of no bytes
	fetchRate  = 64 << 10        // bytes a second over a whole download: an installer (0.4 GiB) in two hours
)

// A Client fetches from the network, with the settings in the machine's files.
type Client struct{ files *files.Files }

// NewClient is the client of the machine with these files.
func NewClient(files *files.Files) Client { return Client{files} }

// Fetch is View's.
func (c Client) Fetch(ctx context.Context, r host.Request) ([]byte, error) {
	var all []byte
	err := c.get(ctx, r, func(body io.Reader) (err error) {
		all, err = io.ReadAll(body)
		return err
	})
	return all, err
}

// Download is Host's.
func (c Client) Download(ctx context.Context, r host.Request, name string, attr host.Attr) error {
	return c.get(ctx, r, func(body io.Reader) error {
		return c.files.WriteFrom(name, body, attr)
	})
}

// get fetches and verifies. After a broken connection it fetches again, from the beginning.
func (c Client) get(ctx context.Context, r host.Request, take func(io.Reader) error) error {
	u, err := url.Parse(r.URL)
	if err != nil {
		return &host.FetchError{URL: anonymousURL(r.URL), Cause: errors.New("it is not a URL")}
	}

	switch u.Scheme {
	case "file":
		err = c.getFile(u.Path, r, take)
	case "http", "https":
		err = c.getWeb(ctx, u, r, take)
	default:
		err = errors.New("a URL is http, https or file")
	}

	if err == nil || errors.As(err, new(*host.FetchError)) {
		return err
	}
	return &host.FetchError{URL: anonymousURL(u.String()), Cause: err}
}

func (c Client) getWeb(ctx context.Context, u *url.URL, r host.Request, take func(io.Reader) error) error {
	client, err := c.client(r.Via)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return retry(ctx, func() error { return getOnce(ctx, client, u, r, take) })
}

// anonymousURL returns a URL, or what was meant to be one, without user and password.
func anonymousURL(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text
	}

	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	if i := strings.LastIndexByte(rest[:end], '@'); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + "://" + rest
}

// retry repeats a request that may succeed another time.
func retry(ctx context.Context, once func() error) error {
	pause := fetchPause
	for try := 1; ; try++ {
		err := once()
		if err == nil || try == fetchTries || !mayHelp(err) {
			return err
		}
		if host.Pause(ctx, pause/2+rand.N(pause)) != nil {
			return err
		}
		pause *= 2
	}
}

// getFile reads a file on the machine, which may be larger than ReadFile takes.
func (c Client) getFile(name string, r host.Request, take func(io.Reader) error) error {
	info, err := c.files.Stat(name)
	if err != nil {
		return err
	}
	in := io.NewSectionReader(host.Part{View: c.files, Name: name}, 0, info.Size)
	return take(newChecked(in, r))
}

// getOnce makes one try.
func getOnce(
	ctx context.Context, client *http.Client, u *url.URL, r host.Request, take func(io.Reader) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(fetchSilence, func() {
		cancel(fmt.Errorf("no answer for %s", fetchSilence))
	})
	defer watch.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}

	req.Header.Set("User-Agent", "gpuadm")
	resp, err := client.Do(req)
	if err != nil {
		return withCause(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &host.FetchError{
			URL:    anonymousURL(u.String()),
			Status: resp.StatusCode,
			Cause:  fmt.Errorf("the server says %s", resp.Status),
		}
	}

	if resp.ContentLength > r.Max {
		return errSize
	}

	size := r.Max
	if resp.ContentLength >= 0 {
		size = resp.ContentLength
	}
	in := &paced{
		in:    resp.Body,
		watch: watch,
		left:  fetchGrace + time.Duration(size/fetchRate)*time.Second,
	}
	err = take(newChecked(in, r))
	return withCause(ctx, err)
}

// withCause gives the reason why a try was cancelled, in place of "context canceled".
func withCause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}

// mayHelp reports whether another try may help: not if the server or gpuadm has refused.
func mayHelp(err error) bool {
	answer := (*host.FetchError)(nil)
	if errors.As(err, &answer) && answer.Status != 0 {
		return answer.Status >= 500 || answer.Status == http.StatusTooManyRequests
	}

	for _, final := range []error{errSize, errDigest, errLong, errDowngrade} {
		if errors.Is(err, final) {
			return false
		}
	}

	failedHere := errors.As(err, new(*host.FileError))
	untrusted := errors.As(err, new(*tls.CertificateVerificationError))
	return !failedHere && !untrusted
}

// client returns an HTTP client that uses the given proxies and certificates, and none from its own
// environment: what a shell exports must not decide what a root process trusts.
func (c Client) client(via host.Via) (*http.Client, error) {
	transport, err := c.Transport(host.Web{Via: via})
	if err != nil {
		return nil, err
	}

	transport.DisableCompression = true // the digest is that of the bytes as they are sent
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}, nil
}

func checkRedirect(r *http.Request, from []*http.Request) error {
	last := from[len(from)-1]
	if len(from) > 5 || last.URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errDowngrade
	}
	return nil
}

// paced reads while there is time left. Only the time that a read takes counts: the machine's own
// disk may be slow.
type paced struct {
	in    io.Reader
	watch *time.Timer   // ends a read without a byte
	left  time.Duration // of the whole download
}

func (p *paced) Read(b []byte) (int, error) {
	began := time.Now()
	p.watch.Reset(fetchSilence)
	n, err := p.in.Read(b)
	p.watch.Stop()
	p.left -= time.Since(began)
	if err == nil && p.left < 0 {
		return 0, errLong
	}
	return n, err
}

// checked reads while the size is as expected. If size or digest are not, the last read fails, so
// that no caller takes for whole what it has read.
type checked struct {
	in   io.Reader
	left int64  // bytes that may still come
	want string // hex digest; "" for any
	sum  hash.Hash
}

func newChecked(in io.Reader, r host.Request) *checked {
	return &checked{
		in:   in,
		left: r.Max,
		want: r.SHA256,
		sum:  sha256.New(),
	}
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.sum.Write(p[:n])
	c.left -= int64(n)
	if c.left < 0 {
		return 0, errSize
	}
	if err == io.EOF && c.want != "" && !strings.EqualFold(hex.EncodeToString(c.sum.Sum(nil)), c.want) {
		return 0, errDigest
	}
	return n, err
}
