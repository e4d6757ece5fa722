// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const blobFolder = converge.Home + "/blobs"

// forged is a machine with a journal that records a cut undo, which would write /usr/bin/rooted,
// setuid. All of it is root's.
func forged(t *testing.T) *simhost.Node {
	t.Helper()
	n := node(t)
	shell := []byte("a shell\n")
	sha := fmt.Sprintf("%x", sha256.Sum256(shell))
	change := converge.Change{
		Stage: "runtime", Section: "runtime", Ref: converge.Ref{
			Kind: "file",
			Name: "/usr/bin/rooted",
			Form: "whole",
		},
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
		line := must.Get(json.Marshal(r))(t)
		text = append(append(text, line...), '\n')
	}

	for _, err := range []error{
		n.Mkdir(converge.Home, host.Attr{Mode: 0o700}),
		n.Mkdir(blobFolder, host.Attr{Mode: 0o700}),
		n.WriteFile(blobFolder+"/"+sha, shell, host.Attr{Mode: 0o600}),
		n.WriteFile(journal, text, host.Attr{Mode: 0o600}),
	} {
		must.OK(t, err)
	}

	return n
}

// TestForgedJournal: a journal that another user could have written is not believed: no run begins,
// and nothing is written.
func TestForgedJournal(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		attr   host.Attr
		refuse string // "" if it is ours
		fix    string
	}{
		{name: converge.Home, attr: host.Attr{Mode: 0o700}},
		{
			converge.Home,
			host.Attr{Mode: 0o700, UID: 65534, GID: 65534},
			"user 65534 owns " + converge.Home,
			"chown root:root " + converge.Home,
		},
		{converge.Home, host.Attr{Mode: 0o770}, "its group can write to " + converge.Home, "chmod go-w " + converge.Home},
		{converge.Home, host.Attr{Mode: 0o707}, "all users can write to " + converge.Home, "chmod go-w " + converge.Home},
		{
			converge.Home,
			host.Attr{Mode: fs.ModeSticky | 0o777},
			"all users can write to " + converge.Home,
			"chmod go-w " + converge.Home,
		},
		{journal, host.Attr{Mode: 0o600, UID: 65534}, "user 65534 owns it", "chown root:root " + journal},
		{journal, host.Attr{Mode: 0o620}, "its group can write to it", "chmod go-w " + journal},
		{
			blobFolder,
			host.Attr{Mode: 0o777, UID: 65534},
			"user 65534 owns it",
			"chown root:root " + blobFolder + " && chmod go-w " + blobFolder,
		},
		{"/var/lib", host.Attr{Mode: 0o775}, "its group can write to /var/lib", "chmod go-w /var/lib"},
		{"/var", host.Attr{Mode: 0o755, UID: 1}, "user 1 owns /var", "chown root:root /var"},
		{"/", host.Attr{Mode: 0o777}, "all users can write to /", "chmod go-w /"},
	} {
		t.Run(fmt.Sprintf("%s %v %d", c.name, c.attr.Mode, c.attr.UID), func(t *testing.T) {
			n := forged(t)
			must.OK(t, n.SetAttr(c.name, c.attr))
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
						i, err := n.Stat("/usr/bin/rooted")
						check.That(t, err == nil && i.Mode&fs.ModeSetuid != 0, "the journal of root was not gone on with: %v, %v", i.Mode, err)
					}

					continue
				}

				touches := n.Touches()
				err := do(engine(t, ""))
				told := (*trouble.Error)(nil)
				check.That(t, errors.As(err, &told) && strings.Contains(err.Error(), c.refuse) && strings.Contains(strings.Join(told.Try, "\n"), c.fix),
					"%s: want a refusal with %q and %q, got %#v", what, c.refuse, c.fix, err)
				_, err = n.Lstat("/usr/bin/rooted")
				check.That(t, errors.Is(err, fs.ErrNotExist) && n.Touches() == touches, "%s touched %d times: %v", what, n.Touches()-touches, err)
			}

			if c.refuse == "" {
				return
			}
			// The gate goes by what it sees on the machine: neither the cut run nor a hold of such
			// a journal count.
			s, err := engine(t, "").Pending(ctx, n.View())
			check.That(t, err == nil && s.Unfinished == "" && s.Held == "" && strings.Contains(s.Damage, c.refuse),
				"pending: unfinished %q, held %q, damage %q, %v", s.Unfinished, s.Held, s.Damage, err)
		})
	}
}

// What gpuadm itself leaves on a machine is what it trusts: an apply with the units, and an undo.
func TestApplyIsTrusted(t *testing.T) {
	for _, m := range machines(t) {
		n, e := m.boot(t), func() *converge.Engine { return installing(t, sections["default"]) }
		if len(plan(t, n, e()).Cannot()) > 0 {
			e = func() *converge.Engine { return installing(t, "") }
		}
		trusted := func(when string) {
			t.Helper()
			names := append(stages.Installed(n), journal)
			for _, folder := range []string{converge.Home, blobFolder} {
				below := must.Get(n.ReadDir(folder))(t)
				for _, name := range below {
					names = append(names, folder+"/"+name)
				}
			}

			if err := n.Trusted(names...); err != nil {
				t.Errorf("%s: %s: %v", m.name, when, faults.Untrusted(n.Root(), err))
			}
		}

		apply(t, n, e())
		must.That(t, slices.Contains(stages.Installed(n), stages.Binary), "%s: the boot unit was not installed", m.name)
		trusted("applied")
		apply(t, n, e())
		undo(t, n, e(), "all")
		trusted("undone")
	}
}

// TestBakeWithoutRoot: an image that was prepared without root works for its builder. Packed with
// the builder's files no run begins at its first boot, and what the units run is not trusted;
// packed as root's it is.
func TestBakeWithoutRoot(t *testing.T) {
	const folder, user = "GPUADM_TEST_BAKE", 65534
	if dir := os.Getenv(folder); dir != "" { // the builder
		h, err := local.Open(dir)
		for range 2 {
			if err == nil {
				_, err = installing(t, "").Apply(context.Background(), h)
			}
		}

		must.That(t, err == nil && os.Getuid() == user, "as user %d: %v", os.Getuid(), err)
		return
	}

	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "gpuadm-test-") // t.TempDir lets no other user in
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, program := filepath.Join(dir, "image"), filepath.Join(dir, "test") // where this program lies may be for root's eyes alone
	self, err := os.ReadFile("/proc/self/exe")
	for _, err := range []error{err, os.Chmod(dir, 0o755), os.Mkdir(image, 0o755), os.Chown(image, user, user), os.WriteFile(program, self, 0o755)} {
		must.OK(t, err)
	}
	cmd := exec.Command(program, "-test.run=^TestBakeWithoutRoot$")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), folder+"="+image)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
		Uid: user,
		Gid: user,
	}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the builder: %v\n%s", err, out)
	}
	h, err := local.Open(image)
	must.OK(t, err)
	again := func() error {
		_, err := installing(t, "").Apply(context.Background(), h)
		return err
	}

	if err := again(); err == nil || !strings.HasPrefix(err.Error(), "cannot trust "+image) {
		t.Errorf("with the builder's files: %v", err)
	}
	if err := h.Trusted(stages.Binary); err == nil || !slices.Contains(stages.Installed(h), stages.Binary) {
		t.Errorf("the builder's binary: %v", err)
	}
	err = filepath.WalkDir(image, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, 0, 0))
	})
	must.OK(t, err)
	err = errors.Join(again(), h.Trusted(stages.Installed(h)...))
	check.That(t, err == nil, "with root's files: %v", err)
}
