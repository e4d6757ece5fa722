// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import "context"

type listener struct{}

// Listen returns a context in which Say and Warn have a listener.
func Listen(ctx context.Context, to func(what What, text string)) context.Context {
	return context.WithValue(ctx, listener{}, to)
}

// Say tells who watches a run what a Make that takes long is waiting for. Without a listener it says nothing.
func Say(ctx context.Context, text string) { say(ctx, Waiting, text) }

// Warn tells what a Make could not do and went on without: a terminal does not wipe it away as it does what Say has said.
func Warn(ctx context.Context, text string) { say(ctx, Unkept, text) }

func say(ctx context.Context, what What, text string) {
	if to, ok := ctx.Value(listener{}).(func(What, string)); ok {
		to(what, text)
	}
}
