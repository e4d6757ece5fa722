// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// A key that NVIDIA has changed is replaced by the machine's own catalog, as every other row is.
func TestOverlayReplacesAKey(t *testing.T) {
	c := Load()
	ch, err := Choose(c, machine("ubuntu", "24.04", "amd64", "2331"), driver("580.95.05"))
	must.OK(t, err)
	name := strings.TrimSuffix(filepath.Base(ch.Repo.KeyURL), ".pub")
	const mine = "0123456789ABCDEF0123456789ABCDEF01234567"
	if c, err = c.overlaid([]byte(`keys = [ { name = "` + name + `", fingerprint = "` + mine + `", origin = "me", checked = "memory", confidence = "low", date = "2026-11-22" } ]`)); err != nil {
		t.Fatal(err)
	}
	if ch, err = Choose(c, machine("ubuntu", "24.04", "amd64", "2331"), driver("580.95.05")); err != nil || ch.Repo.Fingerprint != mine {
		t.Errorf("the key is %s, not the overlay's; %v", ch.Repo.Fingerprint, err)
	}
}
