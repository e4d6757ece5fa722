// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestNoRestartForWhatWasNotWritten: where a full disk keeps a file from being written, the daemon that reads it is not restarted.
func TestNoRestartForWhatWasNotWritten(t *testing.T) {
	tested := 0
	for _, m := range machines(t) {
		e := engine(t, specs["default"])
		if len(plan(t, m.boot(t), e).Cannot()) > 0 {
			continue
		}
		for at := range 40 {
			n := m.boot(t)
			n.Fail(at, syscall.ENOSPC)
			_, err := engine(t, specs["default"]).Apply(t.Context(), n)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot make file ") {
				continue
			}
			why := strings.Join(rolledBack(err), ", ")
			if strings.Contains(why, "file ") {
				continue // it was written, and only its folder could not be synced
			}
			tested++
			if strings.Contains(why, "restart ") {
				t.Errorf("%s, touch %d: %v: undone %s", m.name, at, err, why)
			}
		}
	}
	if tested < 10 {
		t.Errorf("only %d failed writes", tested)
	}
}

func rolledBack(err error) []string {
	var t *converge.Trouble
	if errors.As(err, &t) {
		return t.Undone
	}
	return nil
}
