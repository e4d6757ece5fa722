// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import "context"

type listener struct{}

// Listen returns a context in which Say tells somebody.
func Listen(ctx context.Context, to func(text string)) context.Context {
	return context.WithValue(ctx, listener{}, to)
}

// Say tells whoever watches a run what a Make that takes long is waiting for. It says nothing in a context that nobody
// listens to.
func Say(ctx context.Context, text string) {
	if to, ok := ctx.Value(listener{}).(func(string)); ok {
		to(text)
	}
}
