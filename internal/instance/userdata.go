// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/pem"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/url"
	"strings"
)

// maxUserData limits the unpacked size in bytes of all parts of user data together: EC2 accepts 16
// KiB packed. nodeadm could not read larger user data.
const maxUserData = 1 << 20

// unpack decodes base64 and gzip, in either order.
func unpack(data []byte) []byte {
	for range 3 {
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			data = gunzip(data)
			continue
		}
		withoutSpace := bytes.Join(bytes.Fields(data), nil)
		plain, err := base64.StdEncoding.DecodeString(string(withoutSpace))
		if err != nil || len(plain) == 0 {
			return data
		}
		data = plain
	}
	return data
}

// gunzip unpacks data; nil if that fails or is too large.
func gunzip(data []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxUserData+1))
	if err != nil || len(plain) > maxUserData {
		return nil
	}
	return plain
}

// documents returns the parts of user data that are of a media type; all of it if it has no parts.
func documents(data []byte, mediaType string) (list [][]byte) {
	m, err := mail.ReadMessage(bytes.NewReader(data))
	if err != nil {
		return [][]byte{data}
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") {
		return [][]byte{data}
	}

	parts := multipart.NewReader(m.Body, params["boundary"])
	size := 0
	for range 100 {
		part, err := parts.NextPart()
		if err != nil {
			return list
		}
		kind, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if kind != mediaType {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(part, maxUserData))
		if err != nil {
			continue
		}

		doc := unpack(body)
		size += len(doc)
		if size > maxUserData {
			return nil
		}
		list = append(list, doc)
	}

	return list
}

// authority decodes a PEM certificate from base64; nil if it is none.
func authority(text string) []byte {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || !certificate(data) {
		return nil
	}
	return data
}

// certificate says whether data begins with a certificate in PEM form.
func certificate(data []byte) bool {
	block, _ := pem.Decode(data)
	return block != nil && block.Type == "CERTIFICATE" && len(data) <= 64<<10
}

// server says whether s can be an API server's address.
func server(s string) bool {
	u, err := url.Parse(s)
	if err != nil || !plain(s) {
		return false
	}
	onlyHost := u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
	return u.Scheme == "https" && u.Host != "" && onlyHost
}
