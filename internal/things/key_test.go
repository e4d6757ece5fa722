// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/internal/things"
)

const edKey = "F22CC24F7F742054127646D9354FB98A5B4AF876"

func keyNode(t *testing.T) *simhost.Node {
	t.Helper()
	data, err := os.ReadFile("testdata/ed25519.asc")
	if err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile("testdata/both.asc")
	if err != nil {
		t.Fatal(err)
	}
	n, err := simhost.New([]byte("-- etc/apt/keyrings/ --\n-- simulated-net/mirror.example/key.pub --\n" + string(data) + "-- srv/both.asc --\n" + string(both)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestKey(t *testing.T) {
	for _, file := range []string{"/etc/apt/keyrings/x.gpg", "/etc/apt/keyrings/x.asc"} {
		n, ctx := keyNode(t), context.Background()
		w := things.Key(file, "https://mirror.example/key.pub", edKey, host.Via{}, "")
		if s, err := w.Look(ctx, n); s != "" || err != nil {
			t.Fatalf("before: %q, %v", s, err)
		}
		if err := w.Make(ctx, n, edKey); err != nil {
			t.Fatal(err)
		}
		if s, err := w.Look(ctx, n); s != edKey || err != nil {
			t.Errorf("%s holds %q, %v", file, s, err)
		}
		data, _ := n.ReadFile(file)
		if armored := strings.HasPrefix(string(data), "-----BEGIN"); armored != strings.HasSuffix(file, ".asc") {
			t.Errorf("%s is armored: %v", file, armored)
		}
		if err := things.NewKey(w.Name()).Make(ctx, n, ""); err != nil {
			t.Fatal(err)
		}
		if s, _ := w.Look(ctx, n); s != "" {
			t.Errorf("after undo: %q", s)
		}
	}
}

// A keyring that holds one key more would have the repository trusted in that key's name as well.
func TestKeyIsWhatItIs(t *testing.T) {
	n, ctx := keyNode(t), context.Background()
	for from, fingerprint := range map[string]string{
		"/srv/both.asc":                  edKey,
		"https://mirror.example/key.pub": strings.Repeat("A", 40),
		"https://mirror.example/other":   edKey,
	} {
		w := things.Key("/etc/apt/keyrings/x.gpg", from, fingerprint, host.Via{}, "")
		if err := w.Make(ctx, n, converge.State(fingerprint)); err == nil {
			t.Errorf("the key from %s was taken for %s", from, fingerprint)
		}
		if s, _ := w.Look(ctx, n); s != "" {
			t.Errorf("the key from %s was written: %q", from, s)
		}
	}
	w := things.Key("/srv/both.asc", "/srv/both.asc", edKey, host.Via{}, "")
	found, err := w.Look(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	trouble := (*converge.Trouble)(nil)
	if _, err := w.To(found); !errors.As(err, &trouble) || len(trouble.Try) == 0 {
		t.Errorf("somebody else's keyring: %v", err)
	}
}
