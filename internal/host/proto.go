// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ProtoFields calls see for each field of a message that holds bytes.
func ProtoFields(message []byte, see func(field int, value []byte) error) error {
	return ProtoAll(message, func(field int, value []byte, _ uint64) error {
		if value == nil {
			return nil
		}
		return see(field, value)
	})
}

// ProtoAll calls see for each field of a message that holds bytes or a number: value is nil for a
// number. The module protobuf reads its own program's file at each start of it, to have no two
// programs agree on what a text looks like.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]
		var value []byte
		var number uint64
		size, known := 0, true
		switch tag & 7 {
		case 0:
			if number, size = binary.Uvarint(message); size <= 0 {
				return errNoProto
			}
		case 2:
			long, n := binary.Uvarint(message)
			if n <= 0 || long > uint64(len(message)-n) {
				return errNoProto
			}
			size = n + int(long)
			value = message[n:size:size]
		case 1:
			size, known = 8, false
		case 5:
			size, known = 4, false
		default: // groups are of a syntax that CRI and the pods' resources never had
			return errNoProto
		}
		if size > len(message) {
			return errNoProto
		}
		message = message[size:]
		if !known {
			continue
		}
		if err := see(int(tag>>3), value, number); err != nil {
			return err
		}
	}

	return nil
}

var errNoProto = errors.New("cannot read the answer: it is no message of protocol buffers")

// ErrTouches is the error of a read-only transport for a request that would change something.
var ErrTouches = errors.New("internal error: a request that changes something was made by what only looks")

// OnlyLooks makes a transport to w read-only: it refuses requests that change something.
func OnlyLooks(t http.RoundTripper, w Web) http.RoundTripper { return looking{t, w.Queries} }

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
	case http.MethodPost:
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/selfsubjectreviews", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
			return true // who am I, and what may I: nothing is stored
		}
	}
	return false
}

// CloseIdleConnections lets http.Client close what is left open.
func (l looking) CloseIdleConnections() {
	if c, ok := l.through.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// AskSocket gets what a daemon of the machine says by HTTP at its Unix socket, up to 16 MiB. A
// Later is where no daemon runs for the machine, as in a root folder.
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
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("cannot ask at %s: HTTP status %s", socket, res.Status)
	}

	return body, err
}

// MaxAnswer is the size in bytes above which an answer to Call is refused.
const MaxAnswer = 16 << 20
