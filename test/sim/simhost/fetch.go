// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Fetch is host.View's: the network is a folder, /simulated-net/HOST/PATH.
func (n *Node) Fetch(_ context.Context, r host.Request) ([]byte, error) {
	data, err := n.ReadFile(named(r.URL))
	sum := sha256.Sum256(data)
	switch {
	case err != nil:
		return nil, &host.FetchError{URL: r.URL, Cause: err}
	case int64(len(data)) > r.Max:
		return nil, &host.FetchError{
			URL:   r.URL,
			Cause: errors.New("it is larger than expected"),
		}
	case r.SHA256 != "" && r.SHA256 != hex.EncodeToString(sum[:]):
		return nil, &host.FetchError{
			URL:   r.URL,
			Cause: errors.New("its SHA-256 is not the expected one"),
		}
	}

	return data, nil
}

// named returns the file of a URL. The path of a file URL is read as internal/host/web does.
func named(address string) string {
	scheme, rest, isURL := strings.Cut(address, "://")
	u, err := url.Parse(address)
	switch {
	case !isURL:
		return address
	case scheme != "file":
		return "/simulated-net/" + rest
	case err != nil:
		return rest
	}
	return u.Path
}

// Download is host.Host's.
func (n *Node) Download(ctx context.Context, r host.Request, name string, attr host.Attr) error {
	data, err := n.Fetch(ctx, r)
	if err != nil {
		return err
	}
	return n.WriteFrom(name, bytes.NewReader(data), attr)
}

// Room is host.View's: a simulated disk is full only where a test says so, by an error of a touch.
func (n *Node) Room(string) (host.Room, error) {
	return host.Room{Bytes: 1 << 40, Files: 1 << 30}, nil
}
