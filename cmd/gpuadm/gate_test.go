// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// TestGateLine: each attempt of kubelet logs one line, which names the command that says more.
func TestGateLine(t *testing.T) {
	err := gateLine(&trouble.Error{What: "cannot let kubelet start", Because: []string{"no GPU answers", "and more"}, Try: []string{"lspci"}})
	want := "cannot let kubelet start: no GPU answers; " + trouble.Command("status") + " says how to fix it"
	if told, ok := err.(*trouble.Error); !ok || told.What != want || len(told.Because)+len(told.Try) > 0 {
		t.Errorf("%+v", err)
	}
}

// TestWaitingText: status prints once what each change waits for, and what to do if it does not happen.
func TestWaitingText(t *testing.T) {
	var b strings.Builder
	plugin := converge.Change{Reason: converge.Reason{Waits: "not yet: the node offers 0 of 8", Try: []string{"add tolerations"}}}
	waitingText(&b, []converge.Change{{}, plugin, plugin, {Reason: converge.Reason{Waits: "x", Because: []string{"y"}}}})
	if want := "\nnot yet: the node offers 0 of 8\n  try      add tolerations\n\nx\n  because  y\n"; b.String() != want {
		t.Errorf("%s", b.String())
	}
}
