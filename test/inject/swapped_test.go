// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/swap"
)

// TestSwappedRoot has a process without rights exchange the root folder for a link to another
// machine's files, as fast as it can, while the unmodified program applies and undoes: it works on
// the root folder, or says why it does not, and never elsewhere.
func TestSwappedRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be led astray by another user")
	}
	base := folder(t)
	parent, outside := filepath.Join(base, "parent"), filepath.Join(base, "outside")
	root, link := filepath.Join(parent, "img"), filepath.Join(parent, "link")
	fresh(t, root)
	fresh(t, outside)
	first, _ := readTree(t, root)
	err := os.Symlink(outside, link)
	if err == nil {
		err = os.Lchown(link, swap.UID, swap.UID)
	}
	must.OK(t, err)
	stop := swap.Start(t, parent, "img", "link")
	worked, refused := 0, 0
	for i := range 20 {
		command := []string{"apply", "undo --to all"}[i%2]
		switch r := run(t, root, command); {
		case r.Exit == 0:
			worked++
		case strings.Contains(r.Stderr, "cannot open root folder "+root+": "+root+" is a link to "+outside), strings.Contains(r.Stderr, "cannot open root folder "+root+": not a directory"):
			refused++
		default:
			t.Errorf("%s: exit %d: %s", command, r.Exit, oneLine(r.Stderr))
		}
	}

	stop()
	t.Logf("worked %d times, refused %d times", worked, refused)
	check.That(t, worked != 0 && refused != 0, "nothing was swapped while it worked")
	goOn(t, root, "undo --to all", first)
	is, _ := readTree(t, outside)
	if lines := is.differs(first); len(lines) > 0 {
		t.Errorf("outside of the root: %s (%d such)", lines[0], len(lines))
	}
	_, err = os.Lstat(filepath.Join(outside, own))
	check.That(t, errors.Is(err, fs.ErrNotExist), "outside of the root there is a journal (%v)", err)
}
