// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func folderAt(t *testing.T) (Client, string) {
	t.Helper()
	dir := t.TempDir()
	return NewClient(files.New(must.Get(files.OpenRoot(dir))(t))), dir
}

func TestFetch(t *testing.T) {
	h, dir := folderAt(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/key":
			_, _ = w.Write([]byte("key"))
		case "/away":
			http.Redirect(w, r, "/key", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer web.Close()
	must.OK(t, os.WriteFile(filepath.Join(dir, "local"), []byte("local"), 0o600))
	for _, tt := range []struct {
		what string
		r    host.Request
		want string // "" = error
		says string
	}{
		{"plain", host.Request{URL: web.URL + "/key", Max: 10}, "key", ""},
		{"redirected", host.Request{URL: web.URL + "/away", Max: 10}, "key", ""},
		{"digest", host.Request{URL: web.URL + "/key", Max: 10, SHA256: strings.ToUpper(digest("key"))}, "key", ""},
		{"exact size", host.Request{URL: web.URL + "/key", Max: 3}, "key", ""},
		{"other digest", host.Request{URL: web.URL + "/key", Max: 10, SHA256: digest("kex")}, "", "SHA-256"},
		{"too large", host.Request{URL: web.URL + "/key", Max: 2}, "", "larger"},
		{"missing", host.Request{URL: web.URL + "/none", Max: 10}, "", "404"},
		{"round", host.Request{URL: web.URL + "/round", Max: 10}, "", "without end"},
		{"on the machine", host.Request{URL: "file:///local", Max: 10, SHA256: digest("local")}, "local", ""},
		{"not on the machine", host.Request{URL: "file:///none", Max: 10}, "", "no such file"},
		{"no URL", host.Request{URL: "http://%zz", Max: 10}, "", "not a URL"},
		{"no web", host.Request{URL: "ftp://localhost/x", Max: 10}, "", "http, https or file"},
	} {
		got, err := h.Fetch(context.Background(), tt.r)
		check.That(t, (string(got) == tt.want || err != nil) && (err == nil) == (tt.want != ""), "%s: %q, %v", tt.what, got, err)
		check.That(t, err == nil || strings.Contains(err.Error(), tt.says), "%s: the error does not say %q: %v", tt.what, tt.says, err)
	}
}

func TestDownload(t *testing.T) {
	h, dir := folderAt(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("driver"))
	}))
	defer web.Close()
	attr := host.Attr{Mode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	r := host.Request{URL: web.URL + "/run", Max: 100, SHA256: digest("other")}
	err := h.Download(context.Background(), r, "/run", attr)
	check.That(t, errors.Is(err, errDigest), "a wrong digest: %v", err)
	left, _ := os.ReadDir(dir)
	check.That(t, len(left) == 0, "left after a wrong digest: %v", left)
	r.SHA256 = digest("driver")
	must.OK(t, h.Download(context.Background(), r, "/run", attr))
	got, _ := os.ReadFile(filepath.Join(dir, "run"))
	check.That(t, string(got) == "driver", "got %q", got)
}

// A password in a URL must not be read aloud by an error.
func TestFetchMasksPasswords(t *testing.T) {
	h, _ := folderAt(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, url := range []string{"http://me:hunter2@localhost:1/x", "http://me:hunter2@local host/x", "ftp://me:hunter2@localhost/x", "http://me:hunter2@localhost:port?q"} {
		_, err := h.Fetch(ctx, host.Request{URL: url, Max: 1})
		failed := (*host.FetchError)(nil)
		check.That(t, errors.As(err, &failed) && !strings.Contains(err.Error(), "hunter2") && !strings.Contains(failed.URL, "me"), "%s: %v", url, err)
	}
}

func TestFetchTrustsTheGivenCA(t *testing.T) {
	h, dir := folderAt(t)
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, "http://localhost/", http.StatusFound)
		}
		_, _ = w.Write([]byte("ok"))
	}))
	defer web.Close()
	_, err := h.Fetch(context.Background(), host.Request{URL: web.URL, Max: 10})
	check.That(t, err != nil && strings.Contains(err.Error(), "certificate"), "a certificate of an unknown authority: %v", err)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	must.OK(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
	via := host.Via{CAFile: "/ca.pem"}
	got, err := h.Fetch(context.Background(), host.Request{
		URL: web.URL,
		Max: 10,
		Via: via,
	})
	check.That(t, err == nil && string(got) == "ok", "%q, %v", got, err)
	_, err = h.Fetch(context.Background(), host.Request{
		URL: web.URL + "/down",
		Max: 10,
		Via: via,
	})
	check.That(t, errors.Is(err, errDowngrade), "from https to http: %v", err)
}

func TestFetchGoesThroughTheProxy(t *testing.T) {
	h, _ := folderAt(t)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("via proxy to " + r.Host))
	}))
	defer proxy.Close()
	t.Setenv("http_proxy", "http://localhost:1") // what a shell exports does not count
	r := host.Request{
		URL: "http://mirror.example/x",
		Max: 100,
		Via: host.Via{HTTP: proxy.URL, No: []string{"direct.example"}},
	}
	got, err := h.Fetch(context.Background(), r)
	check.That(t, err == nil && string(got) == "via proxy to mirror.example", "%q, %v", got, err)
}

// A server that hiccups is asked again; one that says no is not.
func TestFetchPersists(t *testing.T) {
	for _, tt := range []struct {
		err   error
		asked int
	}{
		{&host.FetchError{Status: 503}, fetchTries},
		{&host.FetchError{Status: 429}, fetchTries},
		{errors.New("connection reset"), fetchTries},
		{&host.FetchError{Status: 404}, 1},
		{errDigest, 1},
		{&host.FileError{Cause: os.ErrPermission}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			check.That(t, retry(t.Context(), func() error {
				asked++
				return tt.err
			}) != nil, "no error")
			check.That(t, asked == tt.asked, "%v: asked %d times, want %d", tt.err, asked, tt.asked)
		})
	}
}

// drip sends so many bytes, some at once, each time after a pause by the test's clock.
type drip struct {
	ctx       context.Context
	bytes, at int
	pause     time.Duration
}

func (d *drip) Read(p []byte) (int, error) {
	if d.bytes == 0 {
		return 0, io.EOF
	}
	select {
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	case <-time.After(d.pause):
	}

	n := min(d.bytes, d.at, len(p))
	d.bytes -= n
	return n, nil
}

func (*drip) Close() error { return nil }

func (d *drip) RoundTrip(r *http.Request) (*http.Response, error) {
	d.ctx = r.Context()
	return &http.Response{
		StatusCode:    http.StatusOK,
		Body:          d,
		ContentLength: -1,
	}, nil
}

// TestFetchHasAFloor: a download that would take days is given up, and a transfer that has stopped
// is repeated. A slow disk on this machine is no reason.
func TestFetchHasAFloor(t *testing.T) {
	const mib = 1 << 20
	for what, tt := range map[string]struct {
		bytes, at int           // bytes in all, and at once
		pause     time.Duration // before each time
		disk      time.Duration // that our disk takes for each read
		says      string        // "" for no error
		within    time.Duration
	}{
		"a byte each second": {mib, 1, time.Second, 0, "too long for its size", fetchGrace + 129*time.Second},
		"just fast enough":   {mib, 4096, time.Second, 0, "", 256 * time.Second},
		"in bursts":          {8 * mib, 2 * mib, 29 * time.Second, 0, "", 2 * time.Minute},
		"for days":           {8 * mib, 8192, time.Second, 0, "too long for its size", fetchGrace + 129*time.Second},
		"nothing at all":     {mib, 1, time.Hour, 0, "no answer for 30s", fetchSilence},
		"to a slow disk":     {2 * mib, 1 * mib, time.Second, time.Hour, "", 3 * time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				web := &http.Client{Transport: &drip{
					bytes: tt.bytes,
					at:    tt.at,
					pause: tt.pause,
				}}
				take := func(r io.Reader) error {
					for b := make([]byte, 4*mib); ; time.Sleep(tt.disk) {
						if _, err := r.Read(b); err == io.EOF {
							return nil
						} else if err != nil {
							return err
						}
					}
				}

				err := getOnce(t.Context(), web, &url.URL{
					Scheme: "http",
					Host:   "localhost",
				}, host.Request{Max: 8 * mib}, take)
				if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) || time.Since(began) > tt.within {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// TestFetchRefusesBySize: what says that it is too large is not begun.
func TestFetchRefusesBySize(t *testing.T) {
	web := &http.Client{Transport: large{}}
	take := func(io.Reader) error { t.Error("it was read"); return nil }
	err := getOnce(t.Context(), web, &url.URL{
		Scheme: "http",
		Host:   "localhost",
	}, host.Request{Max: 10}, take)
	check.That(t, errors.Is(err, errSize), "%v", err)
}

type large struct{}

func (large) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode:    http.StatusOK,
		Body:          http.NoBody,
		ContentLength: 11,
	}, nil
}
