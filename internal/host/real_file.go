// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"io"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// realFile is a plain descriptor, not an os.File: what is opened here must never wait in the runtime's poller,
// and a file that blocks (a FIFO, /proc/kmsg) must say EAGAIN.
type realFile int

func (f realFile) Stat() (Info, error) {
	var st unix.Stat_t
	if err := retryEINTR(func() error { return unix.Fstat(int(f), &st) }); err != nil {
		return Info{}, err
	}
	return info(&st), nil
}

func (f realFile) Read(p []byte) (int, error) {
	n, err := retryEINTR2(func() (int, error) { return unix.Read(int(f), p) })
	return read(n, len(p), err)
}

func (f realFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := retryEINTR2(func() (int, error) { return unix.Pread(int(f), p, off) })
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
		n, err := retryEINTR2(func() (int, error) { return unix.Write(int(f), p[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (f realFile) Chown(uid, gid int) error {
	uid, gid = storedOwner(uid, caller()[0]), storedOwner(gid, caller()[1])
	return retryEINTR(func() error { return unix.Fchown(int(f), uid, gid) })
}

func (f realFile) Chmod(mode fs.FileMode) error {
	return retryEINTR(func() error { return unix.Fchmod(int(f), unixMode(mode)) })
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
		v, err := value(func(buf []byte) (int, error) { return unix.Fgetxattr(int(f), name, buf) })
		switch err {
		case nil:
			all[name] = v
		case unix.ENODATA, unix.EPERM, unix.EACCES, unix.ENOTSUP: // gone meanwhile, or not for our eyes: xattr(7)
		default:
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// value asks for the size first and reads then, again if it grew in between (ERANGE).
func value(get func(buf []byte) (int, error)) (string, error) {
	for {
		n, err := retryEINTR2(func() (int, error) { return get(nil) })
		if err != nil || n == 0 {
			return "", err
		}
		buf := make([]byte, n)
		n, err = retryEINTR2(func() (int, error) { return get(buf) })
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
	return retryEINTR(func() error { return unix.Fsetxattr(int(f), name, []byte(value), 0) })
}

func (f realFile) RemoveXattr(name string) error {
	return retryEINTR(func() error { return unix.Fremovexattr(int(f), name) })
}

func (f realFile) Sync() error  { return retryEINTR(func() error { return unix.Fsync(int(f)) }) }
func (f realFile) Close() error { return unix.Close(int(f)) }
