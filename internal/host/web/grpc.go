// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// maxMessage is how many bytes of a server's error text are quoted.
const maxMessage = 1 << 10

// Call makes one unary gRPC call to a daemon's socket, and returns the answer's bytes.
func Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: dialSocket(socket)}
	defer transport.CloseIdleConnections()

	frame := []byte{0} // not compressed
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(request)))
	frame = append(frame, request...)
	address := "http://localhost" + method
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(frame))
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

// unframe returns the message of an answer, or the error that its status says. An answer without a
// message has its status in the headers, others in the trailers.
func unframe(res *http.Response, body []byte) ([]byte, error) {
	for _, h := range []http.Header{res.Header, res.Trailer} {
		if status := h.Get("Grpc-Status"); status != "" && status != "0" {
			return nil, refusal(status, h.Get("Grpc-Message"))
		}
	}

	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", res.Status)
	}

	const frame = 5 // bytes before the message: 0 and its length
	notWhole := errors.New("the answer is not one whole gRPC message")
	if len(body) < frame {
		return nil, notWhole
	}
	message := body[frame:]
	length := int(binary.BigEndian.Uint32(body[1:frame]))
	if body[0] != 0 || length != len(message) {
		return nil, notWhole
	}
	return message, nil
}

// refusal is the error of a status that is not OK. Its message is escaped as in a URL.
func refusal(status, message string) *host.CallError {
	const unknown = 2
	code, err := strconv.Atoi(status)
	if err != nil {
		code = unknown
	}
	text, err := url.PathUnescape(message)
	if err != nil {
		text = message
	}
	text = text[:min(len(text), maxMessage)]
	return &host.CallError{Code: code, Message: strings.ToValidUTF8(text, "?")}
}
