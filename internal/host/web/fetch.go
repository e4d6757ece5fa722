// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// errSize and errDigest are final: the server would send the same bytes again. So is errLong:
// another try would take as long.
var (
	errSize   = errors.New("it is larger than expected")
	errDigest = errors.New("its SHA-256 is another one than expected")
	errLong   = fmt.Errorf("it takes too long for its size: %v and a second for each %d KiB are enough", fetchGrace, fetchRate>>10)
)

const (
	fetchTries   = 4
	fetchPause   = time.Second      // before the second try; doubled before each further one
	fetchSilence = 30 * time.Second // without a byte: the other side has gone

	// A server that sends a byte now and then would hold an apply, and a boot, for ever.
	fetchGrace = 5 * time.Minute // for a download of no bytes
	fetchRate  = 64 << 10        // bytes a second over a whole download: 0.4 GiB, an installer of 2026, in two hours
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
	return c.get(ctx, r, func(body io.Reader) error { return c.files.WriteFrom(name, body, attr) })
}

// get fetches and verifies. After a broken connection it fetches again, from the beginning.
func (c Client) get(ctx context.Context, r host.Request, take func(io.Reader) error) error {
	u, err := url.Parse(r.URL)
	if err != nil {
		return &host.FetchError{URL: anonymousURL(r.URL), Cause: errors.New("it is not a URL")}
	}
	fail := func(err error) error {
		if failed := (*host.FetchError)(nil); err == nil || errors.As(err, &failed) {
			return err
		}
		return &host.FetchError{URL: anonymousURL(u.String()), Cause: err}
	}
	if u.Scheme == "file" {
		return fail(c.getFile(u.Path, r, take))
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fail(errors.New("a URL is http, https or file"))
	}
	client, err := c.client(r.Via)
	if err != nil {
		return fail(err)
	}
	defer client.CloseIdleConnections()
	return fail(persist(ctx, func() error { return c.once(ctx, client, u, r, take) }))
}

// anonymousURL is a URL, or what was meant to be one, without user and password.
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

// persist repeats a request that may succeed another time.
func persist(ctx context.Context, once func() error) error {
	for pause, try := fetchPause, 1; ; pause, try = 2*pause, try+1 {
		err := once()
		if err == nil || try == fetchTries || !worthATry(err) || ctx.Err() != nil {
			return err
		}
		if host.Pause(ctx, pause/2+rand.N(pause)) != nil {
			return err
		}
	}
}

// getFile reads a file on the machine, which may be larger than ReadFile takes.
func (c Client) getFile(name string, r host.Request, take func(io.Reader) error) error {
	info, err := c.files.Stat(name)
	if err != nil {
		return err
	}
	in := io.NewSectionReader(host.Part{View: c.files, Name: name}, 0, info.Size)
	return take(&checked{in: in, left: r.Max, want: r.SHA256, sum: sha256.New()})
}

// once makes one try.
func (c Client) once(ctx context.Context, client *http.Client, u *url.URL, r host.Request, take func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(fetchSilence, func() { cancel(fmt.Errorf("no answer for %s", fetchSilence)) })
	defer watch.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "gpuadm")
	resp, err := client.Do(req)
	if err != nil {
		return because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &host.FetchError{URL: anonymousURL(u.String()), Status: resp.StatusCode, Cause: fmt.Errorf("the server says %s", resp.Status)}
	}
	size := r.Max
	if resp.ContentLength > r.Max {
		return errSize
	} else if resp.ContentLength >= 0 {
		size = resp.ContentLength
	}
	in := &paced{in: resp.Body, watch: watch, left: fetchGrace + time.Duration(size/fetchRate)*time.Second}
	err = take(&checked{in: in, left: r.Max, want: r.SHA256, sum: sha256.New()})
	return because(ctx, err)
}

// because gives the reason why a try was cancelled, in place of "context canceled".
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}

// worthATry says whether another try may help: not for what the server or we refuse.
func worthATry(err error) bool {
	answer, file, cert := (*host.FetchError)(nil), (*host.FileError)(nil), (*tls.CertificateVerificationError)(nil)
	switch {
	case errors.As(err, &answer) && answer.Status != 0:
		return answer.Status >= 500 || answer.Status == http.StatusTooManyRequests
	case errors.Is(err, errSize), errors.Is(err, errDigest), errors.Is(err, errLong), errors.Is(err, errDowngrade), errors.As(err, &file), errors.As(err, &cert):
		return false
	}
	return true
}

var errDowngrade = errors.New("it leads from https to http, or on for ever")

// client is an HTTP client that goes through the proxies and trusts the certificates asked for, and
// no others of its own environment: what a shell exports must not decide what a root process
// trusts.
func (c Client) client(via host.Via) (*http.Client, error) {
	transport, err := c.Transport(host.Web{Via: via})
	if err != nil {
		return nil, err
	}
	transport.DisableCompression = true // what a digest is of
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, from []*http.Request) error {
		if len(from) > 5 || from[len(from)-1].URL.Scheme == "https" && r.URL.Scheme != "https" {
			return errDowngrade
		}
		return nil
	}}, nil
}

// paced reads on while there is time left. Only the time that a read takes counts: our own disk may
// be slow.
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
	if p.left -= time.Since(began); err == nil && p.left < 0 {
		return 0, errLong
	}
	return n, err
}

// checked reads on while size and digest are as expected. The last read fails if they are not, so
// that what was read is never taken for whole.
type checked struct {
	in   io.Reader
	left int64
	want string
	sum  hash.Hash
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.sum.Write(p[:n])
	if c.left -= int64(n); c.left < 0 {
		return 0, errSize
	}
	if err == io.EOF && c.want != "" && !strings.EqualFold(hex.EncodeToString(c.sum.Sum(nil)), c.want) {
		return 0, errDigest
	}
	return n, err
}

// maxSaid is how many bytes of a server's error text are quoted.
const maxSaid = 1 << 10

func Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(append(frame, request...)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, host.MaxAnswer))
	if err != nil {
		return nil, err
	}
	return unframe(res, body)
}

// unframe returns the message of an answer, or what its status says. An answer without a message
// has its status in the headers, others in the trailers.
func unframe(res *http.Response, body []byte) ([]byte, error) {
	for _, h := range []http.Header{res.Header, res.Trailer} {
		if status := h.Get("Grpc-Status"); status != "" && status != "0" {
			code, err := strconv.Atoi(status)
			if err != nil {
				code = 2 // unknown
			}
			text, err := url.PathUnescape(h.Get("Grpc-Message"))
			if err != nil {
				text = h.Get("Grpc-Message")
			}
			return nil, &host.CallError{Code: code, Message: strings.ToValidUTF8(text[:min(len(text), maxSaid)], "?")}
		}
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", res.Status)
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		return nil, fmt.Errorf("the answer is not one whole gRPC message")
	}
	return body[5:], nil
}
