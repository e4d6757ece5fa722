// SPDX-License-Identifier: Apache-2.0

// Package check reports what a test finds wrong, each in one line; the test continues. Package must
// ends it instead.
package check

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// All says whether all cases run, as make nightly has it. For each change each kind of test runs,
// but not every case.
func All() bool { return os.Getenv("LAB_ALL") != "" }

// Every is n, so that each n-th of many cases runs; 1 if all run.
func Every(n int) int {
	if All() {
		return 1
	}
	return n
}

// Turn is below n, and another in each run of CI and in each night, so that in n runs each case is
// tested: GPUADM_TURN is the number of the run.
func Turn(n int) int {
	number, _ := strconv.Atoi(os.Getenv("GPUADM_TURN"))
	return number % n
}

// Part is the part of a ring that a night runs, of the number of parts: GPUADM_PART=2/12 is the
// second of twelve. It is the first of one where a night runs all.
func Part() (which, of int) {
	text := os.Getenv("GPUADM_PART")
	if text == "" {
		return 1, 1
	}
	_, err := fmt.Sscanf(text, "%d/%d", &which, &of)
	if err != nil || which < 1 || which > of {
		panic("GPUADM_PART=" + text + " is no part, such as 2/12")
	}
	return which, of
}

// That reports the message unless what is asked for holds.
func That(t testing.TB, holds bool, message string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(message, args...)
	}
}

// OK reports an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Equal reports what was got and what was wanted, unless they are equal.
func Equal[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s %s, want %s", fmt.Sprintf(what, args...), show(got), show(want))
	}
}

// List is Equal for lists; one without elements equals nil.
func List[T comparable](t testing.TB, got, want []T, what string, args ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s %s, want %s", fmt.Sprintf(what, args...), show(got), show(want))
	}
}

// None reports a text that should be empty: a difference, or what is left behind.
func None(t testing.TB, got string, what string, args ...any) {
	t.Helper()
	if got != "" {
		t.Errorf("%s\n%s", fmt.Sprintf(what, args...), got)
	}
}

// Has reports a text that lacks a part.
func Has(t testing.TB, text, part, what string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s\n%s\nlacks %q", fmt.Sprintf(what, args...), text, part)
	}
}

// Says reports each part that a text lacks.
func Says(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// show quotes texts, in which white space matters.
func show(value any) string {
	switch value.(type) {
	case string, []string:
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}
