// SPDX-License-Identifier: Apache-2.0

package files

import (
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/sys/unix"
)

// realFile is a plain descriptor, not an os.File: what is opened here must never wait in the
// runtime's poller, and a read of a file that blocks (a FIFO, /proc/kmsg) must return EAGAIN.
type realFile int

func (f realFile) Stat() (host.Info, error) {
	var st unix.Stat_t
	if err := RetryEINTR(func() error { return unix.Fstat(int(f), &st) }); err != nil {
		return host.Info{}, err
	}
	return info(&st), nil
}

func (f realFile) Read(p []byte) (int, error) {
	n, err := retryEINTRValue(func() (int, error) { return unix.Read(int(f), p) })
	return read(n, len(p), err)
}

func (f realFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := retryEINTRValue(func() (int, error) { return unix.Pread(int(f), p, off) })
	return read(n, len(p), err)
}

func read(n, want int, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	if n == 0 && want > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (f realFile) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := retryEINTRValue(func() (int, error) { return unix.Write(int(f), p[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}

	return done, nil
}

func (f realFile) Chown(uid, gid int) error {
	uid = storedOwner(uid, caller()[0])
	gid = storedOwner(gid, caller()[1])
	return RetryEINTR(func() error { return unix.Fchown(int(f), uid, gid) })
}

func (f realFile) Chmod(mode fs.FileMode) error {
	return RetryEINTR(func() error { return unix.Fchmod(int(f), UnixMode(mode)) })
}

func (f realFile) Xattrs() (map[string]string, error) {
	names, err := value(func(buf []byte) (int, error) { return unix.Flistxattr(int(f), buf) })
	if err == unix.ENOTSUP || err == nil && names == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	all := map[string]string{}
	for _, name := range strings.Split(strings.TrimSuffix(names, "\x00"), "\x00") {
		v, err := value(func(buf []byte) (int, error) {
			return unix.Fgetxattr(int(f), name, buf)
		})
		switch err {
		case nil:
			all[name] = v
		case unix.ENODATA, unix.EPERM, unix.EACCES, unix.ENOTSUP:
			// Removed meanwhile, or unreadable: xattr(7).
		default:
			return nil, err
		}
	}

	if len(all) == 0 {
		return nil, nil
	}

	return all, nil
}

// value asks for the size, then reads; it repeats both if the value has grown in between (ERANGE).
func value(get func(buf []byte) (int, error)) (string, error) {
	for {
		n, err := retryEINTRValue(func() (int, error) { return get(nil) })
		if err != nil || n == 0 {
			return "", err
		}
		buf := make([]byte, n)
		n, err = retryEINTRValue(func() (int, error) { return get(buf) })
		if err == unix.ERANGE {
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
}

func (f realFile) SetXattr(name, value string) error {
	return RetryEINTR(func() error { return unix.Fsetxattr(int(f), name, []byte(value), 0) })
}

func (f realFile) RemoveXattr(name string) error {
	return RetryEINTR(func() error { return unix.Fremovexattr(int(f), name) })
}

func (f realFile) Sync() error {
	return RetryEINTR(func() error { return unix.Fsync(int(f)) })
}

func (f realFile) Close() error { return unix.Close(int(f)) }

// xattrs reads a file's extended attributes, without those that the kernel computes from the
// content (IMA, EVM: Documentation/ABI/testing/ima_policy): they would be wrong for other content.
func xattrs(file File) (map[string]string, error) {
	all, err := file.Xattrs()
	if err != nil {
		return nil, err
	}
	delete(all, "security.ima")
	delete(all, "security.evm")
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// setXattrs gives a file the wanted extended attributes and no others: ACLs, capabilities and
// SELinux labels among them. Attributes that already have the wanted value are not set again:
// SELinux labels from a mount option can be read but not set.
func setXattrs(file File, want map[string]string) error {
	have, err := xattrs(file)
	if err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := have[name]; ok && v == want[name] {
			continue
		}
		if err := file.SetXattr(name, want[name]); err != nil {
			return attrError{"attribute " + name, err}
		}
	}

	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[name]; ok || isLabel(name) {
			continue
		}
		if err := file.RemoveXattr(name); err != nil {
			return attrError{"attribute " + name, err}
		}
	}

	return nil
}

// isLabel reports whether an attribute is a label that every file has and that cannot be removed:
// SELinux answers EACCES (security/selinux/hooks.c, "No one is allowed to remove a SELinux security
// label").
func isLabel(name string) bool {
	return strings.HasPrefix(name, "security.") && name != "security.capability"
}

// attrError reports which attribute could not be set.
type attrError struct {
	what  string
	cause error
}

func (e attrError) Error() string { return e.what + ": " + e.cause.Error() }
func (e attrError) Unwrap() error { return e.cause }
