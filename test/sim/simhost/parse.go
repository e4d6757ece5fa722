// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/host/files"
)

// settings is the section sim.toml.
const settings = "sim.toml"

// New makes a node from a txtar archive: its sections are the machine's files, "etc/os-release"
// with markers after the name where a file is not 0644 root's ("usr/bin/x mode=0755"), and sim.toml
// says the rest. Recorded machines have the same form.
//
//	-- etc/x mode=0600 owner=1000:1000 ctime=2026-01-02T03:04:05Z --
//	-- etc/x xattr=user.note=hello xattr=security.selinux=0sBASE64 chattr=i --
//	-- etc/link link=/y --             or link=0sBASE64; link= cannot be read
//	-- etc/empty/ mode=0700 --
//	-- etc/secret size=123 --          there, with content that was not recorded
//	-- usr/bin/x base64 --             content is base64
//	-- etc/x nonl --                   content without the last newline
//	-- run/x.sock type=socket --       or fifo, char, block
//	-- dev/x device=195:0 --           a character device with its numbers
//	-- boot/efi/ mount ro --           a mount point, a read-only file system from here down
//	-- "name with space" --
func New(archive []byte) (*Node, error) {
	n := &Node{
		live:     true,
		cutAt:    -1,
		failures: map[int]error{},
		programs: map[string]Program{},
		servers:  map[string]http.Handler{},
		units:    map[string]*daemon{},
		lastPID:  1000,
		now:      time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		bootID:   "00000000-0000-4000-8000-000000000000",
	}
	n.Files = files.New(disk{n: n})
	n.raw = files.New(disk{n: n, raw: true})
	n.root = &inode{attrs: attrs{mode: fs.ModeDir | 0o755}, names: map[string]*inode{}}

	var set config
	var sections []txtar.File // the machine's files
	for _, section := range txtar.Parse(archive).Files {
		if section.Name != settings {
			sections = append(sections, section)
			continue
		}
		if err := set.parse(section.Data); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", settings, err)
		}
	}

	if err := n.configure(set); err != nil {
		return nil, err
	}
	if err := n.fill(sections, n.booted.Add(-24*time.Hour)); err != nil {
		return nil, err
	}
	if err := n.setBootID(); err != nil {
		return nil, err
	}
	if err := n.configureUnits(set.Unit); err != nil {
		return nil, err
	}
	return n, nil
}

// fill makes the folders that every machine has, and the files of the sections.
func (n *Node) fill(sections []txtar.File, ctime time.Time) error {
	for _, dir := range []string{
		"dev", "proc", "run", "sys", "tmp",
		"etc", "root", "usr/bin", "usr/lib", "var/lib", "var/log",
	} {
		if _, err := n.folderAt(dir, ctime); err != nil {
			return err
		}
	}

	n.root.names["tmp"].mode |= fs.ModeSticky | 0o777
	for _, section := range sections {
		if err := n.add(section, ctime); err != nil {
			return fmt.Errorf("cannot read section %q: %w", section.Name, err)
		}
	}

	proc := n.root.names["proc"]
	if proc.names["devices"] == nil {
		const devices = "Character devices:\n  1 mem\n\nBlock devices:\n"
		proc.put("devices", &inode{
			attrs: attrs{mode: 0o444, data: []byte(devices)},
			ctime: ctime,
		})
	}

	settle(n.root, false, false)
	for _, name := range []string{"proc", "sys", "dev"} {
		settle(n.root.names[name], true, false)
	}
	return nil
}

// settle syncs all as it lies, and hands down what holds for all below.
func settle(i *inode, kernel, readOnly bool) {
	i.kernel = i.kernel || kernel
	i.readOnly = i.readOnly || readOnly
	for _, below := range i.names {
		settle(below, i.kernel, i.readOnly)
	}
	i.sync()
}

// put puts something under a name, or nothing if it is nil, as if it had always been so.
func (i *inode) put(name string, below *inode) {
	nameChange{name: below}.apply(i.names)
	i.syncedNames = maps.Clone(i.names)
	i.pending = nil
}

// folderAt finds or makes a folder. The path is free of links.
func (n *Node) folderAt(dir string, ctime time.Time) (*inode, error) {
	at := n.root
	for _, part := range strings.Split(path.Clean("/"+dir), "/") {
		if part == "" {
			continue
		}
		next := at.names[part]
		if next == nil {
			next = &inode{
				attrs:  attrs{mode: fs.ModeDir | 0o755},
				ctime:  ctime,
				names:  map[string]*inode{},
				kernel: at.kernel,
			}
			next.sync()
			at.put(part, next)
		}

		if next.names == nil {
			return nil, fmt.Errorf("%s is not a folder", part)
		}
		at = next
	}

	return at, nil
}

// folderFor finds or makes the folder a path lies in, over links.
func (n *Node) folderFor(name string) (*inode, error) {
	dir := path.Dir(path.Clean("/" + name))
	real, err := n.raw.Resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := n.folderFor(dir); err != nil {
			return nil, err
		}
		real, err = n.raw.Resolve(dir)
	}

	if err != nil {
		return nil, err
	}
	return n.folderAt(real, n.now)
}

func (n *Node) add(section txtar.File, ctime time.Time) error {
	name, markers, err := header(section.Name)
	if err != nil {
		return err
	}
	i := &inode{attrs: attrs{mode: 0o644, data: section.Data}, ctime: ctime}
	base := path.Base(name)
	switch {
	case strings.HasSuffix(name, "/"):
		i, err = n.folderAt(name, ctime)
		if err != nil {
			return err
		}
		i.ctime = ctime
	case name == "" || base == "." || base == "..":
		return errors.New("no name of a file")
	default:
		folder, err := n.folderAt(path.Dir(name), ctime)
		if err != nil {
			return err
		}
		if folder.names[base] != nil {
			return errors.New("it is there twice")
		}
		folder.put(base, i)
	}

	for _, marker := range markers {
		if err := i.mark(marker); err != nil {
			return fmt.Errorf("marker %s: %w", marker, err)
		}
	}

	return nil
}

// header splits a section's name into path and markers.
func header(s string) (name string, markers []string, err error) {
	name, rest, _ := strings.Cut(s, " ")
	if strings.HasPrefix(s, "\"") {
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", nil, err
		}
		name, err = strconv.Unquote(quoted)
		if err != nil {
			return "", nil, err
		}
		rest = s[len(quoted):]
	}

	return strings.TrimPrefix(name, "/"), strings.Fields(rest), nil
}

// mark applies one marker.
func (i *inode) mark(marker string) error {
	key, value, _ := strings.Cut(marker, "=")
	var err error
	switch key {
	case "mode":
		var bits uint64
		bits, err = strconv.ParseUint(value, 8, 12)
		i.mode = i.mode.Type() | modeOf(bits)
	case "owner":
		_, err = fmt.Sscanf(value, "%d:%d", &i.uid, &i.gid)
	case "link":
		i.mode = fs.ModeSymlink | 0o777
		i.target, err = plainOf(value)
		i.data = nil
	case "type":
		kind, ok := kindOf(value)
		if !ok {
			return fmt.Errorf("no such type")
		}
		i.mode = i.mode.Perm() | kind
		i.data = nil
	case "device":
		i.mode = i.mode.Perm() | fs.ModeDevice | fs.ModeCharDevice
		i.data = nil
		_, err = fmt.Sscanf(value, "%d:%d", &i.device.Major, &i.device.Minor)
	case "size":
		i.unread = true
		i.data = nil
		i.size, err = strconv.ParseInt(value, 10, 64)
	case "base64":
		lines := strings.Fields(string(i.data))
		i.data, err = base64.StdEncoding.DecodeString(strings.Join(lines, ""))
	case "nonl":
		i.data = []byte(strings.TrimSuffix(string(i.data), "\n"))
	case "ctime":
		i.ctime, err = time.Parse(time.RFC3339Nano, value)
	case "xattr":
		err = i.markXattr(value)
	case "chattr":
		i.chattr = value
	case "ro":
		i.readOnly = true
	case "mount":
		i.mount = true
	default:
		return fmt.Errorf("no such marker")
	}

	return err
}

// modeOf returns the permissions of mode bits: inode(7).
func modeOf(bits uint64) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	if bits&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

func kindOf(name string) (fs.FileMode, bool) {
	switch name {
	case "socket":
		return fs.ModeSocket, true
	case "fifo":
		return fs.ModeNamedPipe, true
	case "char":
		return fs.ModeDevice | fs.ModeCharDevice, true
	case "block":
		return fs.ModeDevice, true
	}
	return 0, false
}

// markXattr takes name=value, the value as getfattr(1) writes it: plain, or base64 after 0s.
func (i *inode) markXattr(s string) error {
	name, value, _ := strings.Cut(s, "=")
	plain, err := plainOf(value)
	if err != nil {
		return err
	}

	if i.xattrs == nil {
		i.xattrs = map[string]string{}
	}
	i.xattrs[name] = plain
	return nil
}

// plainOf decodes the value of a marker: plain, or base64 after 0s.
func plainOf(value string) (string, error) {
	encoded, is := strings.CutPrefix(value, "0s")
	if !is {
		return value, nil
	}
	plain, err := base64.StdEncoding.DecodeString(encoded)
	return string(plain), err
}

// setBootID writes the boot ID where the kernel shows it; the node is locked or not yet shared.
func (n *Node) setBootID() error {
	dir, err := n.folderAt("proc/sys/kernel/random", n.booted)
	if err != nil {
		return err
	}
	i := &inode{
		attrs:  attrs{mode: 0o444, data: []byte(n.bootID + "\n")},
		ctime:  n.booted,
		kernel: true,
	}
	i.sync()
	dir.put("boot_id", i)
	return nil
}
