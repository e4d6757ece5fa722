// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package aks

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/joins"
)

// TestAKSWaits waits for AKS's own scripts.
func TestAKSWaits(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	if err := n.Remove(facts.AKSProvisioned); err != nil {
		t.Fatal(err)
	}
	w := provisioned(false)
	if _, err := w.Look(t.Context(), n.View()); !converge.Passes(err) {
		t.Error(err)
	}
}

// TestAKSBoots does not wait for scripts that wait for us: they start kubelet, which waits for gpuadm.service.
func TestAKSBoots(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	if err := n.Remove(facts.AKSProvisioned); err != nil {
		t.Fatal(err)
	}
	s := joins.Spec(t, "[join]\nmethod = \"aks\"\n")
	f, err := facts.Gather(t.Context(), n, node.StartupNeeds().And(facts.Needs{Files: method.Files(s)}))
	if err != nil {
		t.Fatal(err)
	}
	f.Booting = true
	wants, err := Wants(f)
	if err != nil || len(wants) != 1 {
		t.Fatal(wants, err)
	}
	var later host.Later
	if _, err := wants[0].Look(t.Context(), n.View()); !errors.As(err, &later) {
		t.Error(err)
	}
}
