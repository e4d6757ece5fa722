// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	be "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// maxAnswer is the size in bytes above which an answer to Call is refused.
const maxAnswer = 16 << 20

// maxSaid is how many bytes of what the other side says of its failure are repeated.
const maxSaid = 1 << 10

// Call is View's. A unary gRPC call is one HTTP/2 POST with a five-byte frame before the message
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), which the standard library can do over a socket:
// google.golang.org/grpc would add 4.5 MiB to the binary.
func (l *live) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	answer, err := call(ctx, socket, method, request)
	if err != nil {
		return nil, fail("call", socket, err)
	}
	return answer, nil
}

func call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	frame := be.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
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
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return unframe(res, body)
}

// unframe returns the message of an answer, or what its status says. An answer without a message has its status in the
// headers, others in the trailers.
func unframe(res *http.Response, body []byte) ([]byte, error) {
	for _, h := range []http.Header{res.Header, res.Trailer} {
		if code := h.Get("Grpc-Status"); code != "" && code != "0" {
			text, err := url.PathUnescape(h.Get("Grpc-Message"))
			if err != nil {
				text = h.Get("Grpc-Message")
			}
			message := fmt.Sprintf("gRPC status %s: %s", code, text)
			return nil, errors.New(strings.ToValidUTF8(message[:min(len(message), maxSaid)], "?"))
		}
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", res.Status)
	}
	if len(body) < 5 || body[0] != 0 || int(be.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		return nil, fmt.Errorf("the answer is not one whole gRPC message")
	}
	return body[5:], nil
}

// ProtoFields calls see for each field of a message that holds bytes.
func ProtoFields(message []byte, see func(field int, value []byte) error) error {
	return ProtoAll(message, func(field int, value []byte, _ uint64) error {
		if value == nil {
			return nil
		}
		return see(field, value)
	})
}

// ProtoAll calls see for each field of a message that holds bytes or a number: value is nil for a number. The module protobuf reads its
// own program's file at each start of it, to have no two programs agree on what a text looks like.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	for len(message) > 0 {
		tag, n := be.Uvarint(message)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]
		var value []byte
		var number uint64
		size, known := 0, true
		switch tag & 7 {
		case 0:
			if number, size = be.Uvarint(message); size <= 0 {
				return errNoProto
			}
		case 2:
			long, n := be.Uvarint(message)
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
