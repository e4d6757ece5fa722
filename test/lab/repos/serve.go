// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

// Serve serves a variant over HTTP at an address in the host's own network, until the host reboots or the test ends. The
// returned function tells which URLs were asked for so far: whole ones, with a host name, if it was asked as a proxy.
func Serve(h *lab.Host, address string, v Variant) (asked func() []string) {
	files := http.FileServer(http.Dir(filepath.Join(h.Options.Repos, string(v))))
	var lock sync.Mutex
	var list []string
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		list = append(list, r.RequestURI)
		lock.Unlock()
		files.ServeHTTP(w, r)
	})}
	listener := h.Listen(address)
	go func() { _ = server.Serve(listener) }() // ends with the listener
	return func() []string {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(list)
	}
}
