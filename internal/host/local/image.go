// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/web"
)

// image is a machine that does not run, and that is baked: its files as a folder has them, and its
// own programs, which run in the folder. No kernel, no systemd and no GPU of this machine is shown
// to them as theirs.
type image struct {
	*folder
	runner commands.Runner
	rooms  *rooms
	sign   *ModuleKey
}

// A ModuleKey is what kernel modules that are built in an image are signed with. It is never
// written into the image.
type ModuleKey struct {
	Private     []byte // PEM, not encrypted
	Certificate []byte // DER
}

// Image opens an image to bake it. root "/" is a build machine that becomes an image. sign may be
// nil. The caller closes it at the end.
//
// Programs run in namespaces of their own, which end with gpuadm, however it ends: no mount and no
// process is left behind (rooms). What lies in the image changes in two places only, and for the
// time of the bake only: see placeholder.
func Image(root string, sign *ModuleKey) (h host.Host, done func(), err error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, nil, host.Failed("open", root, err)
	}

	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // what the caller has left open; Linux 5.11
	named, err := files.OpenRoot(abs)
	if err != nil {
		return nil, nil, host.Failed("open root folder", root, err)
	}

	r, disk, err := openRooms(abs, named)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot run programs in %s: %w", root, err)
	}
	if err := r.keep(sign); err != nil {
		r.end()
		return nil, nil, fmt.Errorf("cannot keep the module key: %w", err)
	}

	files := files.New(disk)
	f := &folder{Files: files, Client: web.NewClient(files), root: abs, dir: named}
	i := &image{folder: f, rooms: r, runner: commands.New(), sign: sign}
	i.runner.Root = "/" // of the thread
	i.runner.Start = func(cmd *exec.Cmd) error { return r.in(func() error { return cmd.Start() }) }
	i.runner.Mode = func(name string) (fs.FileMode, error) {
		info, err := f.Stat(name)
		return info.Mode, err
	}

	// systemctl(1) changes links and starts nothing: https://systemd.io/ENVIRONMENT/,
	// src/systemctl/systemctl.c.
	i.runner.Env = []string{"SYSTEMD_OFFLINE=1"}

	return i, r.end, nil
}

func (i *image) Runs() bool { return true }

// ReadFile is View's. Compilers run on the machine that bakes: what it has of cores and memory
// bounds them.
func (i *image) ReadFile(name string) ([]byte, error) {
	if name == "/proc/cpuinfo" || name == "/proc/meminfo" {
		return os.ReadFile(name)
	}
	return i.folder.ReadFile(name)
}

func (i *image) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return i.runner.Ask(ctx, argv)
}

// AskAbout is View's. The scratch folder lies in the image's /run, which is in memory and goes with
// the namespace.
func (i *image) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) (out []byte, err error) {
	var dir string
	var drop func()
	err = i.rooms.in(func() (err error) {
		dir, drop, err = commands.WriteScratch(i.rooms.path()+"/run", i.rooms.path(), files)
		return err
	})
	if err != nil {
		return nil, host.Failed("make a scratch folder for", argv[0], err)
	}
	defer i.rooms.in(func() error { drop(); return nil })
	return i.runner.Ask(ctx, commands.InScratch(argv, dir))
}

// Do is Host's. The first one gives the programs what they need to change something.
func (i *image) Do(ctx context.Context, argv ...string) ([]byte, error) {
	for _, p := range i.placeholders() {
		if err := i.cover(p); err != nil {
			return nil, fmt.Errorf("cannot run %s in %s: %w", argv[0], i.root, err)
		}
	}
	if err := i.bringSelf(); err != nil {
		return nil, fmt.Errorf("cannot bring gpuadm to the programs of %s: %w", i.root, err)
	}
	return i.runner.Do(ctx, argv, i.lock.file())
}

// bringSelf copies this program into the programs' /run, once: apt starts it there. The file itself
// they could change, by a descriptor (CVE-2019-5736 of runc).
func (i *image) bringSelf() error {
	if i.runner.Self != "" {
		return nil
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		i.runner.Self = "/run/gpuadm"
		err = i.rooms.put(placeholder{mode: 0o755}, i.runner.Self, self)
	}
	return err
}

// A placeholder is a name over which gpuadm mounts a file of its own, in the namespace of the
// image's programs. Where the image has no file of that name it gets an empty one for the time of
// the bake, without the right to be executed: a run that is killed leaves one that does nothing,
// and the next bake removes it.
type placeholder struct {
	name   string
	data   func() ([]byte, error) // fs.ErrNotExist: programs need none
	mode   uint32
	folder string // made where it is missing: a package that comes in the bake reads the file from it at once
}

// placeholderMode tells an empty placeholder from an empty file of the image.
const placeholderMode fs.FileMode = 0o400

// Where programs of an image find the module key: in memory, in their own namespace, for root only.
const (
	modulePrivate     = "/run/gpuadm-module.key"
	moduleCertificate = "/run/gpuadm-module.der"
)

func (i *image) placeholders() []placeholder {
	return []placeholder{
		// The one way in which Debian's packages may be forbidden to start their daemons:
		// invoke-rc.d(8) and deb-systemd-invoke(1) run it, if it may be executed, and do nothing
		// where it exits with 101.
		// Sources: https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt,
		// script/deb-systemd-invoke of init-system-helpers.
		{"/usr/sbin/policy-rc.d", func() ([]byte, error) { return []byte("#!/bin/sh\nexit 101\n"), nil }, 0o755, ""},
		// The resolvers of the machine that bakes. A missing file and an empty one mean the same:
		// resolv.conf(5).
		{"/etc/resolv.conf", func() ([]byte, error) { return os.ReadFile("/etc/resolv.conf") }, 0o644, ""},
		// DKMS, from 3.0.4, signs with the key that the last of its settings names, and makes one
		// where they name none.
		// Sources: read_framework_conf and prepare_signing in dkms.in of
		// https://github.com/dkms-project/dkms (v3.0.10, v3.2.0);
		// https://github.com/dkms-project/dkms/issues/273, where it signs with the key of these two
		// settings.
		{"/etc/dkms/framework.conf.d/zz-gpuadm.conf", func() ([]byte, error) {
			if i.sign == nil {
				return nil, fs.ErrNotExist
			}
			return []byte("mok_signing_key=" + modulePrivate + "\nmok_certificate=" + moduleCertificate + "\n"), nil
		}, 0o644, "/etc/dkms/framework.conf.d"},
		// rpm's plugin gives each script a mount namespace, which programs in an image may not
		// make: rpm-plugin-unshare(8), and rpm-plugins(8) on switching one off.
		{"/usr/lib/rpm/macros.d/macros.zz-gpuadm", func() ([]byte, error) { return []byte("%__transaction_unshare %{nil}\n"), nil }, 0o644, ""},
	}
}

// cover mounts a placeholder's file, once.
func (i *image) cover(p placeholder) (err error) {
	name := p.name
	if i.rooms.covered[name] {
		return nil
	}
	defer func() { i.rooms.covered[name] = err == nil }()
	data, err := p.data()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // this machine needs none
	} else if err != nil {
		return err
	}
	if p.folder != "" {
		for _, dir := range []string{filepath.Dir(p.folder), p.folder} {
			if err := i.Mkdir(dir, host.Attr{Mode: 0o755}); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	target, err := i.Readlink(p.name)
	link := err == nil
	if at := within(target, filepath.Dir(p.name)); link && strings.HasPrefix(at, "/run/") { // systemd-resolved's: programs find /run empty
		return i.rooms.put(p, at, data)
	}
	if _, err := i.Lstat(p.name); errors.Is(err, fs.ErrNotExist) {
		if _, err := i.Stat(filepath.Dir(p.name)); err != nil {
			return nil // no program of that image asks for it
		}
		if err := i.WriteFile(p.name, nil, host.Attr{Mode: placeholderMode}); err != nil {
			return err
		}
	}
	if _, err := i.Stat(p.name); link && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is a link to %s, which does not exist: remove the link", p.name, target)
	}
	if p.name, err = i.Resolve(p.name); err != nil {
		return err
	}

	return i.rooms.put(p, "", data)
}

// within is where a link in a folder leads.
func within(target, folder string) string {
	if !strings.HasPrefix(target, "/") {
		target = folder + "/" + target
	}
	return filepath.Clean("/" + target)
}

// Lock is Host's. At the end of a run the placeholders go: this run's, and those of a bake that was
// killed.
func (i *image) Lock() (func(), error) {
	unlock, err := i.folder.Lock()
	if err != nil {
		return nil, err
	}
	return func() { i.uncover(); unlock() }, nil
}

// uncover removes placeholders. What is mounted over them goes too: unlink(2) of a name that
// another namespace has mounted over.
func (i *image) uncover() {
	clear(i.rooms.covered)
	for _, p := range i.placeholders() {
		if info, err := i.Lstat(p.name); err == nil && info.Mode == placeholderMode && info.Size == 0 {
			_ = i.Remove(p.name) // it does nothing, and the next bake removes it
		}
	}
}
