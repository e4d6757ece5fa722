// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestKeyNotFound: a key that cannot be read, over the network or from a file, comes with a fix.
func TestKeyNotFound(t *testing.T) {
	for from, try := range map[string]string{
		"https://mirror.example/key.pub": "[proxy]",
		"/srv/key.pub":                   "key in",
	} {
		n, err := simhost.New([]byte("-- etc/apt/keyrings/ --\n"))
		must.OK(t, err)
		err = things.Key("/etc/apt/keyrings/x.gpg", from, "EB693B3035CD5710E231E123A4B469963BF863CC", host.Via{}, "").Make(t.Context(), n, "EB693B3035CD5710E231E123A4B469963BF863CC")
		tr := (*trouble.Error)(nil)
		if !errors.As(err, &tr) || !strings.Contains(tr.What, from) || !strings.Contains(strings.Join(tr.Try, "\n"), try) {
			t.Errorf("%s: %+v", from, err)
		}
	}
}
