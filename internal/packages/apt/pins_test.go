// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"errors"
	"math/rand/v2"
	"path"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMatcher holds the short way for simple patterns to path.Match, for random ones.
func TestMatcher(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(62, 3))
	text := func(letters string) string {
		made := make([]byte, random.IntN(6))
		for i := range made {
			made[i] = letters[random.IntN(len(letters))]
		}
		return string(made)
	}

	matches := 0
	for range 200_000 {
		glob, name := text(`ab-**?[]\`), text("aab-")
		ok, err := path.Match(glob, name)
		want := ok && err == nil
		if want {
			matches++
		}
		if got := matcher(glob)(name); got != want {
			t.Fatalf("%q matches %q: %t, path.Match says %t, %v", glob, name, got, ok, err)
		}
	}

	check.That(t, matches > 1000, "only %d matches", matches)
}

// TestPinsSeeAll: no version is chosen without the machine's pins, where they cannot be listed. A
// folder that does not exist has none.
func TestPinsSeeAll(t *testing.T) {
	for _, folder := range []string{pinFolder, ""} {
		n := must.Get(simhost.New(nil))(t)
		_, err := apt{pins: pinFolder}.patternPins(unlisted{made{n}, folder}, nil)
		check.That(t, errors.Is(err, syscall.EIO) == (folder != ""), "%s: %v", folder, err)
	}
}
