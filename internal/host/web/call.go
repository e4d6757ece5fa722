// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// maxSaid is how many bytes of what the other side says of its failure are repeated.
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
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		return nil, fmt.Errorf("the answer is not one whole gRPC message")
	}
	return body[5:], nil
}
