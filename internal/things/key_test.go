// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

const edKey = "F22CC24F7F742054127646D9354FB98A5B4AF876"

func keyNode(t *testing.T) *simhost.Node {
	t.Helper()
	data := must.Get(os.ReadFile("testdata/ed25519.asc"))(t)
	both := must.Get(os.ReadFile("testdata/both.asc"))(t)
	n, err := simhost.New([]byte("-- etc/apt/keyrings/ --\n-- simulated-net/mirror.example/key.pub --\n" + string(data) + "-- srv/both.asc --\n" + string(both)))
	must.OK(t, err)
	return n
}

func TestKey(t *testing.T) {
	for _, file := range []string{"/etc/apt/keyrings/x.gpg", "/etc/apt/keyrings/x.asc"} {
		n, ctx := keyNode(t), context.Background()
		w := things.Key(file, "https://mirror.example/key.pub", edKey, host.Via{}, "")
		s, err := w.Look(ctx, n)
		must.That(t, s == "" && err == nil, "before: %q, %v", s, err)
		must.OK(t, w.Make(ctx, n, edKey))
		s, err = w.Look(ctx, n)
		check.That(t, s == edKey && err == nil, "%s holds %q, %v", file, s, err)
		data, _ := n.ReadFile(file)
		check.Equal(t, strings.HasPrefix(string(data), "-----BEGIN"), strings.HasSuffix(file, ".asc"), "%s is armored:", file)
		must.OK(t, things.NewKey(w.Ref()).Make(ctx, n, ""))
		s, _ = w.Look(ctx, n)
		check.That(t, s == "", "after undo: %q", s)
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
		check.That(t, w.Make(ctx, n, converge.State(fingerprint)) != nil, "the key from %s was taken for %s", from, fingerprint)
		s, _ := w.Look(ctx, n)
		check.That(t, s == "", "the key from %s was written: %q", from, s)
	}

	w := things.Key("/srv/both.asc", "/srv/both.asc", edKey, host.Via{}, "")
	found := must.Get(w.Look(ctx, n))(t)
	told := (*trouble.Error)(nil)
	_, err := w.To(found)
	check.That(t, errors.As(err, &told) && len(told.Try) > 0, "a keyring of another owner: %v", err)
}

// TestKeyOfAnyPath: a path may have characters that mean something else in a URL.
func TestKeyOfAnyPath(t *testing.T) {
	data := must.Get(os.ReadFile("testdata/ed25519.asc"))(t)
	for _, from := range []string{"/srv/a%20b.asc", "/srv/a b#1.asc", "/srv/50%.asc", "/srv/what?.asc"} {
		n, ctx := keyNode(t), context.Background()
		must.OK(t, n.WriteFile(from, data, host.Attr{Mode: 0o644}))
		w := things.Key("/etc/apt/keyrings/x.gpg", from, edKey, host.Via{}, "")
		err := w.Make(ctx, n, edKey)
		check.That(t, err == nil, "%s: %v", from, err)
	}
}

// digest is what sha256sum says of a file, as a key may be trusted by.
func digest(data string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(data)))
}

// TestKeyByDigest: the file stays as it is published, but for lines that begin with "Version" where
// the digest is of the rest.
func TestKeyByDigest(t *testing.T) {
	key := must.Get(os.ReadFile("testdata/ed25519.asc"))(t)
	plain := string(key)
	tool := strings.Replace(plain, "\n\n", "\nVersion: GnuPG v2.0.22 (GNU/Linux)\n\n", 1)
	other := strings.Replace(plain, "mDME", "mDMF", 1)
	body, _, _ := strings.Cut(plain[strings.Index(plain, "\n\n")+2:], "\n")
	for what, row := range map[string]struct{ served, trusted, holds string }{
		"as it is":                 {plain, digest(plain), plain},
		"as it is, with a version": {tool, digest(tool), tool},
		"without its version":      {tool, digest(plain), plain},
		"another file":             {other, digest(plain), ""},
		"no key, with the digest":  {"<html>", digest("<html>"), ""},

		"a key hidden in what the digest leaves out": {strings.Replace(plain, body, "Version"+body+"\n"+body, 1), digest(plain), plain},
	} {
		n := must.Get(simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n-- simulated-net/mirror.example/key.pub --\n" + row.served)))(t)
		w := things.Key("/etc/pki/rpm-gpg/x.asc", "https://mirror.example/key.pub", row.trusted, host.Via{}, "")
		found := must.Get(w.Look(t.Context(), n))(t)
		to, err := w.To(found)
		check.That(t, err == nil && to == converge.State(row.trusted), "%s: planned as %q, %v", what, to, err)
		err = w.Make(t.Context(), n, to)
		data, _ := n.ReadFile("/etc/pki/rpm-gpg/x.asc")
		check.That(t, string(data) == row.holds && (err == nil) == (row.holds != ""), "%s: written as %q, %v", what, data, err)
		if row.holds == "" {
			continue
		}
		again := things.NewKey(w.Ref()) // as undo builds it
		s, err := again.Look(t.Context(), n)
		check.That(t, s == to && err == nil && again.Ref().Name == w.Ref().Name, "%s: %s is %q, %v", what, again.Ref().Name, s, err)
		if found, err := things.Fingerprints(data, row.trusted); err != nil || strings.Join(found, " ") != edKey {
			t.Errorf("%s: fingerprints %v, %v", what, found, err)
		}
		_, err = things.Fingerprints(data, digest("else"))
		check.That(t, err != nil, "%s: its fingerprint was read by another digest", what)
	}
}

// TestRefused: what sqv of Debian 13 says with apt's policy, what gpgv of Debian 12 says, and what
// an operator's own policy says. apt 2.6.2 takes a file of two keys for what either signs, also
// where the other has expired or is revoked.
func TestRefused(t *testing.T) {
	const sqv = "-- usr/bin/sqv --\n-- usr/lib/apt/methods/sqv --\n"
	rows := must.Get(txtar.ParseFile("testdata/refused.txtar"))(t).Files
	for _, system := range []string{sqv, sqv + "-- etc/crypto-policies/back-ends/apt-sequoia.config --\n", "-- usr/bin/gpgv --\n"} {
		n := must.Get(simhost.New([]byte(system)))(t)
		refuses := func(row txtar.File) bool {
			name, said, _ := strings.Cut(row.Name, " ")
			return said == "refused" && system == sqv || name == "revoked" || name == "expired" && !strings.Contains(system, "sqv")
		}

		for i := 0; i < len(rows); i += 2 {
			for j := 0; j < len(rows); j += 2 {
				why, _ := things.Refused(n, slices.Concat(rows[i].Data, rows[j].Data))
				check.That(t, (why != "") == (refuses(rows[i]) && refuses(rows[j])), "%s, %s: refused: %q, on\n%s", rows[i].Name, rows[j].Name, why, system)
			}
		}
	}
}

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
		check.That(t, errors.As(err, &tr) && strings.Contains(tr.What, from) && strings.Contains(strings.Join(tr.Try, "\n"), try), "%s: %+v", from, err)
	}
}

// TestKeyChanges: a key that gpuadm wrote is replaced by the vendor's next one, or by that of
// another source, however each is trusted. Undo restores it though it is published no more; one
// that another process put there is refused, and stays.
func TestKeyChanges(t *testing.T) {
	const file = "/etc/pki/rpm-gpg/x.asc"
	plain, both := must.Get(os.ReadFile("testdata/ed25519.asc"))(t), must.Get(os.ReadFile("testdata/both.asc"))(t)
	second := must.Get(things.Fingerprints(both, ""))(t)
	type key struct{ from, trusted string }
	one, other := key{"https://mirror.example/key.pub", edKey}, key{"/srv/both.asc", strings.Join(second, " ")}
	pinned, otherPinned := key{one.from, digest(string(plain))}, key{other.from, digest(string(both))}
	for i, row := range [][2]key{{one, other}, {one, otherPinned}, {pinned, other}, {pinned, otherPinned}, {{"/srv/old", edKey}, {"/srv/old", strings.Join(second, " ")}}} {
		n := must.Get(simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n-- simulated-net/mirror.example/key.pub --\n" + string(plain) + "-- srv/both.asc --\n" + string(both) + "-- srv/old --\n" + string(plain))))(t)
		holds := func(step string, want []byte) {
			t.Helper()
			data, _ := n.ReadFile(file)
			is, _ := things.Fingerprints(data, "")
			should, _ := things.Fingerprints(want, "")
			check.That(t, strings.Join(is, " ") == strings.Join(should, " "), "%d: after %s the file holds %q, want %q", i, step, is, should)
		}

		wants := func(k key) *converge.Engine {
			return &converge.Engine{
				Spec: specs.Of(t, "[driver]\nversion = \"580\"\n"),
				Stages: []converge.Stage{{Name: "driver", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
					return []converge.Want{things.Key(file, k.from, k.trusted, host.Via{}, "signs")}, nil
				}}},
				ThingOf: func(ref converge.Ref) (converge.Thing, error) { return things.NewKey(ref), nil },
				Prune: func(_ context.Context, h host.Host, needed []converge.Change) error {
					return things.PruneKeys(h, needed)
				},
			}
		}

		apply := func(k key) error { _, err := wants(k).Apply(t.Context(), n); return err }
		undo := func(to string) {
			t.Helper()
			_, err := wants(one).Undo(t.Context(), n, to, nil)
			must.OK(t, err)
		}

		must.OK(t, apply(row[0]))
		holds("the first apply", plain)
		if row[1].from == "/srv/old" { // the same place has the owner's next key
			must.OK(t, n.WriteFile("/srv/old", both, host.Attr{Mode: 0o644}))
		}
		must.OK(t, apply(row[1]))
		holds("the second apply", both)
		must.OK(t, n.Remove("/simulated-net/mirror.example/key.pub"))
		undo("")
		holds("undo", plain)
		must.OK(t, apply(row[1]))
		undo("all")
		holds("undo of all", nil)
		left, _ := n.ReadDir("/var/lib/gpuadm/keys")
		check.That(t, len(left) == 0, "%d: kept for nothing: %v", i, left)
		must.OK(t, n.WriteFile(file, plain, host.Attr{Mode: 0o644}))
		err := apply(row[1])
		check.That(t, err != nil && strings.Contains(err.Error(), "cannot trust"), "%d: another's key: %v", i, err)
		holds("a refusal", plain)
	}
}
