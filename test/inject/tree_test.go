// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/test/must"
)

// own is where gpuadm keeps its journal: the only folder that a run may leave different.
const own = "var/lib/gpuadm"

// tree is what lies in a root folder outside gpuadm's own: by name, all that can be said of it.
type tree map[string]string

// readTree reads a root folder, and names what should lie in none: files that a run has left half
// made, and files of gpuadm's own that others may read.
func readTree(t *testing.T, root string) (tree, []string) {
	t.Helper()
	is := tree{}
	var wrong []string
	err := filepath.WalkDir(root, func(place string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, place)
		info, err := os.Lstat(place)
		if err != nil {
			return err
		}
		if base := info.Name(); strings.HasPrefix(base, ".gpuadm-") && strings.HasSuffix(base, ".tmp") {
			wrong = append(wrong, "left half made: /"+name)
		}
		if name == own || strings.HasPrefix(name, own+"/") {
			if info.Mode().Perm()&0o077 != 0 {
				wrong = append(wrong, fmt.Sprintf("open to others: /%s %v", name, info.Mode()))
			}
			return nil
		}

		is[name], err = describe(place, info)
		return err
	})
	must.OK(t, err)
	return is, wrong
}

// changing finds what differs from run to run: times, run IDs, temporary names.
var changing = regexp.MustCompile(`\d{4}-?\d\d-?\d\dT[0-9:.]+Z(-\d+)?|\.gpuadm-[a-z0-9]{16}\.tmp`)

// state is a digest of all that lies in a root folder, gpuadm's own included, but for what differs
// from run to run.
func state(t *testing.T, root string) string {
	t.Helper()
	sum := sha256.New()
	must.OK(t, filepath.WalkDir(root, func(place string, _ fs.DirEntry, err error) error {
		info, err2 := os.Lstat(place)
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		is := ""
		if strings.HasSuffix(place, ".jsonl") && info.Mode().IsRegular() {
			data, err := os.ReadFile(place)
			is = fmt.Sprint(info.Mode(), changing.ReplaceAllString(string(data), ""), err)
		} else if is, err = describe(place, info); err != nil {
			return err
		}

		fmt.Fprintln(sum, changing.ReplaceAllString(strings.TrimPrefix(place, root), "T"), is)
		return nil
	}))
	return string(sum.Sum(nil))
}

func describe(place string, info fs.FileInfo) (string, error) {
	stat, _ := info.Sys().(*syscall.Stat_t)
	is := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode().IsRegular():
		content, err := digest(place, info)
		if err != nil {
			return "", err
		}
		is += content
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(place)
		return is + " → " + to, err // links have no attributes that a user may set
	}

	attributes, err := attributesOf(place)
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		is += fmt.Sprintf(" %s=%q", name, attributes[name])
	}
	return is, err
}

// attributesOf are the extended attributes of a file or a folder.
func attributesOf(place string) (map[string][]byte, error) {
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(place, list)
	if err != nil && err != unix.ENOTSUP {
		return nil, err
	}
	attributes := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:max(n, 0)]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(place, name, value)
		if err != nil {
			return nil, err
		}
		attributes[name] = value[:n]
	}

	return attributes, nil
}

// digests are those of large files, by what changes with each of their bytes: a copy of a folder
// shares them.
var digests sync.Map

func digest(place string, info fs.FileInfo) (string, error) {
	stat, _ := info.Sys().(*syscall.Stat_t)
	version := fmt.Sprint(stat.Dev, stat.Ino, stat.Size, stat.Mtim)
	if known, found := digests.Load(version); found && info.Size() >= large {
		return known.(string), nil
	}
	data, err := os.ReadFile(place)
	if err != nil {
		return "", err
	}
	is := fmt.Sprintf(" %d %.6x", len(data), sha256.Sum256(data))
	if info.Size() >= large {
		digests.Store(version, is)
	}
	return is, nil
}

// differs says what is different in another tree, a line each.
func (is tree) differs(from tree) []string {
	both := maps.Clone(is)
	maps.Copy(both, from)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(both)) {
		a, b := is[name], from[name]
		switch {
		case b == "":
			lines = append(lines, fmt.Sprintf("not to be there: /%s %s", name, a))
		case a == "":
			lines = append(lines, fmt.Sprintf("missing: /%s %s", name, b))
		case a != b:
			lines = append(lines, fmt.Sprintf("different: /%s is %s, not %s", name, a, b))
		}
	}

	return lines
}

// large is the size from which copies of a folder share a file: gpuadm's own program is most of what
// lies in a folder, and gpuadm changes no file in place. TestAnyCall checks at its end that it has
// not.
const large = 1 << 20

// copyTree copies a root folder with all that readTree reads.
func copyTree(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(folder(t), "root")
	must.OK(t, filepath.WalkDir(from, func(place string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(from, place)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return copyEntry(place, filepath.Join(to, name), info)
	}))
	return to
}

// copyEntry copies one file, link or folder, without what lies in it.
func copyEntry(from, to string, info fs.FileInfo) error {
	var err error
	switch {
	case info.IsDir():
		err = os.Mkdir(to, 0o700)
	case info.Mode()&fs.ModeSymlink != 0:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	case info.Mode().IsRegular() && info.Size() >= large:
		return os.Link(from, to)
	case info.Mode().IsRegular():
		var data []byte
		if data, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, data, 0o600)
		}
	default:
		err = fmt.Errorf("cannot copy %s: it is neither a file, a link nor a folder", from)
	}

	if err != nil {
		return err
	}

	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(to, int(owner.Uid), int(owner.Gid)); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // links have no mode, and no attributes that a user may set
	}
	attributes, err := attributesOf(from)
	if err != nil {
		return err
	}
	for name, value := range attributes {
		if err := unix.Setxattr(to, name, value, 0); err != nil {
			return err
		}
	}

	return os.Chmod(to, info.Mode())
}

// layOut makes a root folder of a recorded machine, without what only a running one has.
func layOut(t *testing.T, record, root string) {
	t.Helper()
	archive := must.Get(txtar.ParseFile(record))(t)
	for _, f := range archive.Files {
		name, with, _ := strings.Cut(f.Name, " ")
		if name == "sim.toml" || strings.HasPrefix(name, "proc/") || strings.HasPrefix(name, "sys/") {
			continue
		}
		data, mode, link := f.Data, fs.FileMode(0o644), ""
		for _, w := range strings.Fields(with) {
			switch key, value, _ := strings.Cut(w, "="); key {
			case "mode":
				bits := must.Get(strconv.ParseUint(value, 8, 32))(t)
				mode = fs.FileMode(bits)
			case "link":
				link = value
			case "size": // a program, of which nothing is recorded
				data = []byte(value)
			}
		}

		place := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil && link != "" {
			if err = os.Symlink(link, place); err == nil {
				err = os.MkdirAll(filepath.Join(root, link), 0o755)
			}
		} else if err == nil {
			err = os.WriteFile(place, data, mode)
		}

		must.OK(t, err)
	}
}
