// SPDX-License-Identifier: Apache-2.0

// Package must ends a test where it cannot continue: at an error that it is not about, or where
// what follows would say nothing.
package must

import "testing"

// OK ends the test unless err is nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// That ends the test with a message unless what it rests on holds.
func That(t testing.TB, holds bool, message string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(message, args...)
	}
}

// Get returns what a call returns beside its error: data := must.Get(os.ReadFile(name))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}
