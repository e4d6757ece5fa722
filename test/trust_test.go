// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/stages"
)

const blobFolder = converge.Home + "/blobs"

// forged is a machine with a journal whose cut undo would write /usr/bin/rooted, setuid. All of it is root's.
func forged(t *testing.T) *simhost.Node {
	t.Helper()
	n := node(t)
	shell := []byte("a shell\n")
	sha := fmt.Sprintf("%x", sha256.Sum256(shell))
	change := converge.Change{
		Stage: "runtime", Section: "runtime", Kind: "file", Name: "/usr/bin/rooted",
		Before: converge.State(fmt.Sprintf("4755 0:0 %s %d", sha, len(shell))),
	}
	const made, undone = "20260101T000000Z", "20260101T000001Z"
	var text []byte
	for _, r := range []converge.Record{
		{What: "begin", Run: made},
		{What: "make", Run: made, Change: &change},
		{What: "end", Run: made, Result: "ok"},
		{What: "begin", Run: undone, Undoes: []string{made}},
	} {
		r.Format, r.Time = converge.JournalFormat, n.Now()
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	for _, err := range []error{
		n.Mkdir(converge.Home, host.Attr{Mode: 0o700}),
		n.Mkdir(blobFolder, host.Attr{Mode: 0o700}),
		n.WriteFile(blobFolder+"/"+sha, shell, host.Attr{Mode: 0o600}),
		n.WriteFile(journal, text, host.Attr{Mode: 0o600}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestForgedJournal: a journal that another user could have written is not believed: no run begins, and nothing is written.
func TestForgedJournal(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		attr   host.Attr
		refuse string // "" if it is ours
		fix    string
	}{
		{name: converge.Home, attr: host.Attr{Mode: 0o700}},
		{converge.Home, host.Attr{Mode: 0o700, UID: 65534, GID: 65534}, "user 65534 owns " + converge.Home, "chown root:root " + converge.Home},
		{converge.Home, host.Attr{Mode: 0o770}, "its group can write to " + converge.Home, "chmod go-w " + converge.Home},
		{converge.Home, host.Attr{Mode: 0o707}, "all users can write to " + converge.Home, "chmod go-w " + converge.Home},
		{converge.Home, host.Attr{Mode: fs.ModeSticky | 0o777}, "all users can write to " + converge.Home, "chmod go-w " + converge.Home},
		{journal, host.Attr{Mode: 0o600, UID: 65534}, "user 65534 owns " + journal, "chown root:root " + journal},
		{journal, host.Attr{Mode: 0o620}, "its group can write to " + journal, "chmod go-w " + journal},
		{blobFolder, host.Attr{Mode: 0o777, UID: 65534}, "user 65534 owns " + blobFolder, "chown root:root " + blobFolder + " && chmod go-w " + blobFolder},
		{"/var/lib", host.Attr{Mode: 0o775}, "its group can write to /var/lib", "chmod go-w /var/lib"},
		{"/var", host.Attr{Mode: 0o755, UID: 1}, "user 1 owns /var", "chown root:root /var"},
		{"/", host.Attr{Mode: 0o777}, "all users can write to /", "chmod go-w /"},
	} {
		t.Run(fmt.Sprintf("%s %v %d", c.name, c.attr.Mode, c.attr.UID), func(t *testing.T) {
			n := forged(t)
			if err := n.SetAttr(c.name, c.attr); err != nil {
				t.Fatal(err)
			}
			for what, do := range map[string]func(*converge.Engine) error{
				"an unattended apply": func(e *converge.Engine) error { e.Unattended = true; _, err := e.Apply(ctx, n); return err },
				"an apply":            func(e *converge.Engine) error { _, err := e.Apply(ctx, n); return err },
				"an undo":             func(e *converge.Engine) error { _, err := e.Undo(ctx, n, "all", nil); return err },
				"a plan":              func(e *converge.Engine) error { _, err := e.Plan(ctx, n.View()); return err },
				"a plan of an undo":   func(e *converge.Engine) error { _, err := e.PlanUndo(ctx, n.View(), "", nil); return err },
			} {
				if c.refuse == "" { // the same journal does what it says where it is root's: else this test could not fail
					if what == "an unattended apply" {
						_ = do(engine(t, ""))
						if i, err := n.Stat("/usr/bin/rooted"); err != nil || i.Mode&fs.ModeSetuid == 0 {
							t.Errorf("the journal of root was not gone on with: %v, %v", i.Mode, err)
						}
					}
					continue
				}
				touches := n.Touches()
				err := do(engine(t, ""))
				trouble := (*converge.Trouble)(nil)
				if !errors.As(err, &trouble) || !strings.Contains(err.Error(), c.refuse) || !strings.Contains(strings.Join(trouble.Try, "\n"), c.fix) {
					t.Errorf("%s: want a refusal with %q and %q, got %#v", what, c.refuse, c.fix, err)
				}
				if _, err := n.Lstat("/usr/bin/rooted"); !errors.Is(err, fs.ErrNotExist) || n.Touches() != touches {
					t.Errorf("%s touched %d times: %v", what, n.Touches()-touches, err)
				}
			}
			if c.refuse == "" {
				return
			}
			// The gate goes by what it sees on the machine: neither the cut run nor a hold of such a journal count.
			s, err := engine(t, "").Pending(ctx, n.View())
			if err != nil || s.Unfinished != "" || s.Held != "" || !strings.Contains(s.Damage, c.refuse) {
				t.Errorf("pending: unfinished %q, held %q, damage %q, %v", s.Unfinished, s.Held, s.Damage, err)
			}
		})
	}
}

// TestHardLinkedJournal: a journal with a second name is one that is written to by that name, too.
func TestHardLinkedJournal(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := host.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := installing(t, "")
	if _, err := e.Apply(ctx, h); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Apply(ctx, h); err != nil {
		t.Fatalf("with one name: %v", err)
	}
	if err := os.Link(filepath.Join(dir, journal), filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"apply": func() error { _, err := e.Apply(ctx, h); return err },
		"undo":  func() error { _, err := e.Undo(ctx, h, "all", nil); return err },
	} {
		trouble := (*converge.Trouble)(nil)
		if err := do(); !errors.As(err, &trouble) || !strings.Contains(err.Error(), "2 names") || len(trouble.Try) == 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, stages.Binary)); err != nil {
		t.Errorf("the undo was not refused before its first touch: %v", err)
	}
}
