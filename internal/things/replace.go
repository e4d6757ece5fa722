// SPDX-FileCopyrightText: The gpuadm authors
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

// lastLook is the state in which a thing's last look found it, or what tells more than the state. Make replaces that and nothing
// else, so that what another process writes between the look and the rename is not lost.
type lastLook struct {
	mu     sync.Mutex
	looked bool
	state  converge.State
}

// keep remembers what a look says.
func (l *lastLook) keep(s converge.State, err error) (converge.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked, l.state = err == nil, s
	return s, err
}

// found is what the last look kept. A thing that was not looked at yet is looked at now: the engine always looks first, so what
// is found then is what there is to keep.
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

// replace makes a name be a file, a link, or nothing, where another process has not changed it.
func (l *lastLook) replace(h host.Host, name string, with *host.Entry, expected func(found *host.Entry) bool) error {
	err := h.Replace(name, with, expected)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.looked = false
	}
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{What: err.Error(), Try: []string{"run the same command again"}, Err: err}
	}
	return err
}
