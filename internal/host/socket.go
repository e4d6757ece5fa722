// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// AskSocket gets what a daemon of the machine says by HTTP at its Unix socket, up to 16 MiB. A Later is where no daemon runs for the
// machine, as in a root folder.
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
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("cannot ask at %s: HTTP status %s", socket, res.Status)
	}
	return body, err
}
