// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Post sends a JSON object to any path, and returns the answer. An object that is there already is a Conflict.
func (c *Client) Post(ctx context.Context, path string, object []byte) (answer []byte, err error) {
	r := call{verb: "post to", what: path, method: http.MethodPost, form: "application/json", body: object, bytes: &answer}
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.Contains(u.Path, "..") {
		return nil, c.fail(r, &Error{Why: Refused, Cause: fmt.Errorf("internal error: it is no path")})
	}
	r.path, r.query = u.Path, u.Query()
	err = c.do(ctx, r)
	return answer, err
}
