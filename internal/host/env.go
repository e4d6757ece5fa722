// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "context"

type variables struct{}

// WithEnv gives the commands that run under a context more environment variables, "NAME=VALUE", over the common ones: what a
// kubeconfig gives its exec plugin may be a secret, and an argv everybody can read.
func WithEnv(ctx context.Context, env ...string) context.Context {
	return context.WithValue(ctx, variables{}, env)
}

// envOf returns what WithEnv gave.
func envOf(ctx context.Context) []string {
	env, _ := ctx.Value(variables{}).([]string)
	return env
}
