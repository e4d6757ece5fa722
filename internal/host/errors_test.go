// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestErrorsAreOneLine: a program's message of several lines, and several errors, become one line.
func TestErrorsAreOneLine(t *testing.T) {
	failed := &host.CommandError{
		Argv:   []string{"apt-get"},
		Code:   1,
		Stderr: "E: a\nE: b",
		Cause:  errors.New("exit status 1"),
	}
	got, want := failed.Error(), "cannot run apt-get: exit status 1: E: a; E: b"
	check.That(t, got == want, "%q, want %q", got, want)
	both := host.Join(nil, failed, fs.ErrNotExist)
	got, want = both.Error(), failed.Error()+"; file does not exist"
	check.That(t, got == want && errors.Is(both, fs.ErrNotExist) && errors.As(both, &failed), "%q, want %q", got, want)
	check.OK(t, host.Join(nil, nil))
}
