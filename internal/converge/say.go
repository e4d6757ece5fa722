// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
)

type (
	listener struct{}
	wayBack  struct{}
)

// Listen returns a context in which Say and Warn tell somebody.
func Listen(ctx context.Context, to func(what What, text string)) context.Context {
	return context.WithValue(ctx, listener{}, to)
}

// Say tells whoever watches a run what a Make that takes long is waiting for. It says nothing in a context that nobody
// listens to.
func Say(ctx context.Context, text string) { say(ctx, Waiting, text) }

// Warn tells what a Make could not do and went on without: a terminal does not wipe it away as it does what Say has said.
func Warn(ctx context.Context, text string) { say(ctx, Unkept, text) }

func say(ctx context.Context, what What, text string) {
	if to, ok := ctx.Value(listener{}).(func(What, string)); ok {
		to(what, text)
	}
}

// WayBack returns a context for what puts back: there Forgo tells somebody, and all goes on.
func WayBack(ctx context.Context, to func(text string)) context.Context {
	return context.WithValue(ctx, wayBack{}, to)
}

// Forgo is for what failed that only serves another way back: to fetch what is about to be replaced. Going forward it returns
// the error. On the way back, which must not hang on it, it tells what is not kept, and why, and returns nil; in a run that
// was stopped the error stays.
func Forgo(ctx context.Context, what string, err error) error {
	to, back := ctx.Value(wayBack{}).(func(string))
	if err == nil || !back || ctx.Err() != nil {
		return err
	}
	text := what + " cannot be had again after this: " + err.Error()
	if t := (*Trouble)(nil); errors.As(err, &t) && len(t.Because) > 0 {
		text += ": " + t.Because[0]
	}
	to(text)
	return nil
}
