// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// lastLook remembers what a thing's last look found: its state, or a digest of its bytes. Make
// replaces the file only if it still is as found, so that no edit is lost that another process
// makes between the look and the rename.
type lastLook struct {
	mu     sync.Mutex
	looked bool
	state  converge.State
}

// keep remembers what a look returns.
func (l *lastLook) keep(s converge.State, err error) (converge.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = err == nil
	l.state = s
	return s, err
}

// found is what the last look kept. If nothing has looked since the last replace, found looks now;
// the engine always looks before a make.
func (l *lastLook) found(ctx context.Context, h host.Host, t converge.Thing) (converge.State, error) {
	l.mu.Lock()
	looked := l.looked
	l.mu.Unlock()
	if !looked {
		if _, err := t.Look(ctx, h); err != nil {
			return "", err
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, nil
}

// replace puts a file or a link under a name, or removes it for nil, if what exists is as expected.
func (l *lastLook) replace(
	h host.Host, name string, with *host.Entry, expected func(found *host.Entry) bool,
) error {
	err := h.Replace(name, with, expected)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.looked = false
	}

	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{
			What: err.Error(),
			Try:  []string{"run the same command again"},
			Err:  err,
		}
	}

	return err
}
