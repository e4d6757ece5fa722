// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A temporary file is in the folder of the file that it becomes: rename(2) works only within a file
// system.
const (
	tempPrefix = ".gpuadm-"
	tempSuffix = ".tmp"
)

// tempName returns a unique name. Another user who may write in the folder cannot guess it.
func tempName() string {
	return tempPrefix + strings.ToLower(rand.Text()[:16]) + tempSuffix
}

// at runs one touch at the place name leads to, and words its error.
func (f *Files) at(verb, name string, follow bool, do func(dir Folder, name string) error) error {
	f.touch.Lock()
	defer f.touch.Unlock()
	at, err := f.walk(name, follow)
	if err != nil {
		return host.Failed(verb, name, err)
	}
	defer at.dir.Close()
	if err := do(at.dir, at.name); err != nil {
		return at.fail(verb, name, err)
	}
	return nil
}

// WriteFile is Host's. What is not in attr.Xattrs is taken off; nil keeps those of the file
// replaced, or for a new file what its folder's defaults give.
func (f *Files) WriteFile(name string, data []byte, attr host.Attr) error {
	return f.WriteFrom(name, bytes.NewReader(data), attr)
}

// WriteFrom is WriteFile for what is too large to hold in memory. If reading fails nothing is
// written.
func (f *Files) WriteFrom(name string, from io.Reader, attr host.Attr) error {
	return f.at("write", name, true, func(dir Folder, name string) error {
		attr, err := inherit(dir, name, attr)
		if err != nil {
			return err
		}
		build := func(temp string) error { return writeNew(dir, temp, from, attr) }
		return settle(dir, build, over(dir, name))
	})
}

// WriteFiles is Host's.
func (f *Files) WriteFiles(folder string, files map[string][]byte, attr host.Attr) error {
	return f.at("write in", folder, true, func(in Folder, name string) error {
		dir, err := in.Folder(name)
		if err != nil {
			return err
		}
		defer dir.Close()
		if _, err := sweep(dir); err != nil {
			return err
		}
		if err := replaceAll(dir, files, attr); err != nil {
			return err
		}
		return dir.Sync()
	})
}

// replaceAll writes all files under temporary names, then renames them. After an error it renames
// no more, and removes those that are left.
func replaceAll(dir Folder, files map[string][]byte, attr host.Attr) (err error) {
	temps := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		temps[name] = tempName()
		err = writeNew(dir, temps[name], bytes.NewReader(files[name]), attr)
		if err != nil {
			break
		}
	}

	for _, name := range slices.Sorted(maps.Keys(temps)) {
		if err == nil {
			err = dir.Rename(temps[name], name, 0)
		}
		if err != nil {
			_ = drop(dir, temps[name]) // else the next sweep does
		}
	}

	return err
}

// writeNew writes a whole file under a temporary name.
func writeNew(dir Folder, temp string, from io.Reader, attr host.Attr) error {
	file, err := dir.Create(temp)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(file, from); err != nil {
		return err
	}
	if _, err := setAttr(file, attr); err != nil {
		return err
	}

	// Before the rename: else after a power cut the new name may lead to no bytes (ext4(5),
	// auto_da_alloc).
	return file.Sync()
}

// inherit adds the old file's extended attributes, unless the caller wants others. It refuses
// anything but a regular file.
func inherit(dir Folder, name string, attr host.Attr) (host.Attr, error) {
	old, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return attr, nil
	}
	if err != nil {
		return attr, err
	}
	if !old.Mode.IsRegular() {
		return attr, notRegular(old.Mode)
	}
	if attr.Xattrs != nil {
		return attr, nil
	}
	old, err = describe(dir, name)
	if err != nil {
		return attr, err
	}
	attr.Xattrs = old.Xattrs
	if attr.Xattrs == nil {
		attr.Xattrs = map[string]string{} // the old file has none: a folder's default ACL must not add any
	}
	return attr, nil
}

// Symlink is Host's.
func (f *Files) Symlink(name, target string) error {
	return f.at("make link", name, false, func(dir Folder, name string) error {
		if i, err := dir.Lstat(name); err == nil && i.Mode.IsDir() {
			return syscall.EISDIR
		}
		build := func(temp string) error { return dir.Symlink(target, temp) }
		return settle(dir, build, over(dir, name))
	})
}

// Mkdir is Host's.
func (f *Files) Mkdir(name string, attr host.Attr) error {
	return f.at("make folder", name, false, func(dir Folder, name string) error {
		if _, err := dir.Lstat(name); err == nil {
			return syscall.EEXIST
		}
		build := func(temp string) error { return makeFolder(dir, temp, attr) }
		put := func(temp string) error { return renameNew(dir, temp, name) }
		return settle(dir, build, put)
	})
}

func makeFolder(dir Folder, temp string, attr host.Attr) error {
	if err := dir.Mkdir(temp); err != nil {
		return err
	}
	made, err := dir.Open(temp)
	if err != nil {
		return err
	}
	defer made.Close()
	// The sync of the name also saves the attributes that a folder has at birth; only others need a
	// sync of their own.
	changed, err := setAttr(made, attr)
	if err != nil || !changed {
		return err
	}
	return made.Sync()
}

// settle builds something under a temporary name; when that is whole, put puts it in its place in
// one step.
func settle(dir Folder, build, put func(temp string) error) error {
	if _, err := sweep(dir); err != nil {
		return err
	}

	temp := tempName()
	err := build(temp)
	if err == nil {
		err = put(temp)
	}
	if errors.As(err, new(strayed)) {
		return err
	}
	if err != nil {
		_ = drop(dir, temp) // else the next sweep does
		return err
	}
	return dir.Sync() // the rename itself is durable only now: fsync(2)
}

// over returns a put for settle that replaces whatever is at name.
func over(dir Folder, name string) func(temp string) error {
	return func(temp string) error { return dir.Rename(temp, name, 0) }
}

// drop removes a temporary file, link or folder.
func drop(dir Folder, temp string) error {
	err := dir.Unlink(temp)
	if errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.EPERM) { // Linux and POSIX, for a folder
		err = dir.Rmdir(temp)
	}
	return err
}

// sweep removes what a killed gpuadm or a power cut left unfinished in a folder. left says why
// a part stays.
func sweep(dir Folder) (left, err error) {
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}

	for _, name := range names {
		if !strings.HasPrefix(name, tempPrefix) || !strings.HasSuffix(name, tempSuffix) {
			continue
		}
		if err := drop(dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = err
		}
	}

	return left, nil
}

// Sweep is Host's. Every touch in a folder but Append and Rename does so too.
func (f *Files) Sweep(folder string) error {
	err := f.at("sweep", folder, true, func(dir Folder, name string) error {
		in, err := dir.Folder(name)
		if err != nil {
			return err
		}
		defer in.Close()
		left, err := sweep(in)
		return errors.Join(left, err)
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// SyncFolder makes durable what others did in a folder; a folder that is gone needs nothing.
func (f *Files) SyncFolder(folder string) error {
	return f.at("sync", folder, true, func(dir Folder, name string) error {
		in, err := dir.Folder(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
		return in.Sync()
	})
}

// SetAttr is Host's. Owner, mode and each extended attribute are set one after the other: a power
// cut within it leaves each old or new, never more open than the old and the new.
func (f *Files) SetAttr(name string, attr host.Attr) error {
	return f.at("change", name, true, func(dir Folder, name string) error {
		i, err := dir.Lstat(name)
		if err != nil {
			return err
		}
		if !i.Mode.IsRegular() && !i.Mode.IsDir() {
			return notRegular(i.Mode)
		}
		file, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		// Until owner and mode are set, only the rights count that both modes give.
		changesOwner := i.UID != attr.UID || i.GID != attr.GID
		narrow := i.Attr().Mode & attr.Mode
		if changesOwner && narrow != i.Attr().Mode {
			if err := file.Chmod(narrow); err != nil {
				return attrError{fmt.Sprintf("mode %v", narrow), err}
			}
		}

		if _, err := setAttr(file, attr); err != nil {
			return err
		}
		return file.Sync()
	})
}

// setAttr gives an open file its owner, extended attributes and mode, in this order: a change of
// owner clears setuid (chown(2)), an ACL sets the mode's group bits (acl(5)), so the mode comes
// last and is what it was asked to be.
func setAttr(file File, attr host.Attr) (changed bool, err error) {
	i, err := file.Stat()
	if err != nil {
		return false, err
	}
	if i.UID != attr.UID || i.GID != attr.GID {
		changed = true
		if err := file.Chown(attr.UID, attr.GID); err != nil {
			return changed, attrError{fmt.Sprintf("owner %d:%d", attr.UID, attr.GID), err}
		}
	}

	if attr.Xattrs != nil {
		changed = true
		if err := setXattrs(file, attr.Xattrs); err != nil {
			return changed, err
		}
	}

	if changed {
		i, err = file.Stat()
		if err != nil {
			return changed, err
		}
	}

	if i.Attr().Mode != attr.Mode {
		changed = true
		if err := file.Chmod(attr.Mode); err != nil {
			return changed, attrError{fmt.Sprintf("mode %v", attr.Mode), err}
		}
	}

	return changed, nil
}

// Remove is Host's.
func (f *Files) Remove(name string) error {
	return f.at("remove", name, false, func(dir Folder, name string) error {
		if _, err := sweep(dir); err != nil {
			return err
		}
		i, err := dir.Lstat(name)
		if err != nil {
			return err
		}
		if i.Mode.IsDir() {
			err = dir.Rmdir(name)
		} else {
			err = dir.Unlink(name)
		}

		if err != nil {
			return err
		}
		return dir.Sync()
	})
}
