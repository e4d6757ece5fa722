// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// The message of a condition and of an Event, which many may read, has no secret of an error or of a change.
func TestReportIsMasked(t *testing.T) {
	text := "cannot fetch https://robot:hunter2@mirror.example/x?sig=hunter2: token=hunter2, Bearer hunter2hunter2 and " + strings.Repeat("x", maxCondition)
	for _, said := range []string{firstLine(errors.New(text)), made([]converge.Change{{Stage: "sources", Ref: converge.Ref{Kind: "file", Name: text}}})[0].message} {
		if strings.Contains(said, "hunter2") || !strings.Contains(said, "mirror.example") {
			t.Errorf("%s", said)
		}
		if len(said) > maxCondition {
			t.Errorf("%d bytes", len(said))
		}
	}
}
