// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestGateLine: what the journal gets each time that kubelet tries is one line, and says where more is to be had.
func TestGateLine(t *testing.T) {
	err := gateLine(&converge.Trouble{What: "cannot let kubelet start", Because: []string{"no GPU answers", "and more"}, Try: []string{"lspci"}})
	want := "cannot let kubelet start: no GPU answers; gpuadm status says how to mend it"
	if trouble, ok := err.(*converge.Trouble); !ok || trouble.What != want || len(trouble.Because)+len(trouble.Try) > 0 {
		t.Errorf("%+v", err)
	}
}

// TestWaitingText: status says once of each thing that is waited for what to do if it does not come.
func TestWaitingText(t *testing.T) {
	var b strings.Builder
	plugin := converge.Change{Waits: "not yet: the node offers 0 of 8", Try: []string{"add tolerations"}}
	waitingText(&b, []converge.Change{{}, plugin, plugin, {Waits: "x", Because: []string{"y"}}})
	if want := "\nnot yet: the node offers 0 of 8\n  try      add tolerations\n\nx\n  because  y\n"; b.String() != want {
		t.Errorf("%s", b.String())
	}
}
