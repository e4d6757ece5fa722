// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Tree is all files as text, one a line, sorted: path, type, mode, owner, content or its digest,
// link target, extended attributes. It says what is, also with the power off. What lies at or below
// the paths in skip is left out.
func (n *Node) Tree(skip ...string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	n.root.print(&b, "/", skip)
	return b.String()
}

func (i *inode) print(b *strings.Builder, name string, skip []string) {
	for _, s := range skip {
		if path.Clean("/"+s) == name {
			return
		}
	}

	fmt.Fprintf(b, "%s %s %04o %d:%d", name, i.kind(), octal(i.mode), i.uid, i.gid)
	switch {
	case i.mode&fs.ModeSymlink != 0:
		fmt.Fprintf(b, " -> %s", i.target)
	case i.unread:
		fmt.Fprintf(b, " %d bytes", i.size)
	case i.mode.IsRegular():
		fmt.Fprintf(b, " %s", content(i.data))
	}

	for _, x := range slices.Sorted(maps.Keys(i.xattrs)) {
		fmt.Fprintf(b, " %s=%q", x, i.xattrs[x])
	}
	b.WriteByte('\n')
	for _, below := range slices.Sorted(maps.Keys(i.names)) {
		i.names[below].print(b, path.Join(name, below), skip)
	}
}

func (i *inode) kind() string {
	switch {
	case i.mode.IsDir():
		return "folder"
	case i.mode&fs.ModeSymlink != 0:
		return "link"
	case i.mode&fs.ModeSocket != 0:
		return "socket"
	case i.mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case i.mode&fs.ModeCharDevice != 0:
		return "char"
	case i.mode&fs.ModeDevice != 0:
		return "block"
	}
	return "file"
}

// content is short text itself, all else by digest.
func content(data []byte) string {
	if len(data) <= 400 && utf8.Valid(data) {
		return strconv.Quote(string(data))
	}
	return fmt.Sprintf("%d bytes sha256:%x", len(data), sha256.Sum256(data))
}

// octal is the mode as chmod(1) takes it.
func octal(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}
