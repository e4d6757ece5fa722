// SPDX-License-Identifier: Apache-2.0

package toml_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestTooMany: the reader's time grows with the square of the tables and keys, and 60,000 tables
// took minutes. More than a limit is refused before it is read; no configuration comes near it.
func TestTooMany(t *testing.T) {
	for _, form := range []string{"[a.b%d]\n", "k%d = 1\n", "[[a.b%d]]\n"} {
		var text bytes.Buffer
		for i := range toml.MaxKeys + 2 {
			fmt.Fprintf(&text, form, i)
		}
		_, err := toml.Values(text.Bytes())
		check.That(t, errors.Is(err, toml.ErrTooMany), "%q, %d times: %v", form, toml.MaxKeys+2, err)
		_, err = toml.Values(text.Bytes()[:text.Len()/2])
		check.That(t, !errors.Is(err, toml.ErrTooMany), "%q, half as often: %v", form, err)
	}
}
