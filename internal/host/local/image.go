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
)

// image is a machine that does not run, and that is baked: its files as a folder has them, and its
// own programs, which run in the folder. No kernel, no systemd and no GPU of this machine is shown
// to them as theirs.
type image struct {
	*folder
	runner  commands.Runner
	sandbox *sandbox
	sign    *ModuleKey
}

// A ModuleKey is what kernel modules that are built in an image are signed with. It is never
// written into the image.
type ModuleKey struct {
	Private     []byte // PEM, not encrypted
	Certificate []byte // DER
}

// Image opens an image to bake it. If root is "/", this machine is a build machine that becomes an
// image. sign and follow may be nil. The caller closes the image at the end.
//
// Programs run in namespaces of their own, which end with gpuadm, however it ends: no mount and no
// process is left (sandbox). For the time of the bake, empty files may be added to the image: see
// placeholder.
func Image(root string, sign *ModuleKey, follow commands.Follow) (h host.Host, done func(), err error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, nil, host.Failed("open", root, err)
	}

	// Programs must not inherit what the caller has left open; Linux 5.11.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	named, err := files.OpenRoot(abs)
	if err != nil {
		return nil, nil, cannotOpen(root, err)
	}

	s, disk, err := openSandbox(abs, named)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot run programs in %s: %w", root, err)
	}
	if err := s.keep(sign); err != nil {
		s.end()
		return nil, nil, fmt.Errorf("cannot keep the module key: %w", err)
	}

	f := newFolder(abs, named, disk)
	i := &image{
		folder:  f,
		sandbox: s,
		runner:  commands.New(),
		sign:    sign,
	}
	i.runner.Follow = follow
	i.runner.Root = "/" // of the thread
	i.runner.Start = func(cmd *exec.Cmd) error {
		return s.in(cmd.Start)
	}
	i.runner.Mode = func(name string) (fs.FileMode, error) {
		info, err := f.Stat(name)
		return info.Mode, err
	}

	// systemctl(1) changes links and starts nothing: https://systemd.io/ENVIRONMENT/,
	// src/systemctl/systemctl.c.
	i.runner.Env = []string{"SYSTEMD_OFFLINE=1"}

	return i, s.end, nil
}

func (i *image) Runs() bool { return true }

// ReadFile is View's. Compilers run on the machine that bakes: its cores and memory limit them.
func (i *image) ReadFile(name string) ([]byte, error) {
	if name == "/proc/cpuinfo" || name == "/proc/meminfo" {
		return os.ReadFile(name)
	}
	return i.folder.ReadFile(name)
}

func (i *image) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return i.runner.Ask(ctx, argv)
}

func (i *image) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	return i.runner.AskWith(ctx, env, argv)
}

// AskAbout is View's. The scratch folder lies in the image's /run, which is in memory and goes with
// the namespace.
func (i *image) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	var dir string
	var drop func()
	err := i.sandbox.in(func() (err error) {
		root := i.sandbox.path()
		dir, drop, err = commands.WriteScratch(root+"/run", root, files)
		return err
	})
	if err != nil {
		return nil, host.Failed("make a scratch folder for", argv[0], err)
	}
	defer i.sandbox.in(func() error {
		drop()
		return nil
	})
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

// bringSelf copies this program into the programs' /run, once: apt starts it there. Through a
// descriptor programs could change the file itself (CVE-2019-5736 of runc).
func (i *image) bringSelf() error {
	if i.runner.Self != "" {
		return nil
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}

	const name = "/run/gpuadm"
	if err := i.sandbox.put(placeholder{mode: 0o755}, name, self); err != nil {
		return err
	}
	i.runner.Self = name
	return nil
}

// A placeholder is a name over which gpuadm mounts a file of its own, in the namespace of the
// image's programs: see host.Placeholders.
type placeholder struct {
	name string
	data func() ([]byte, error) // fs.ErrNotExist: programs need none
	mode uint32
	// folder is made if it does not exist: a package that the bake installs reads the file
	// from it at once.
	folder string
}

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
		{
			name: host.PolicyFile,
			data: text("#!/bin/sh\nexit 101\n"),
			mode: 0o755,
		},
		// The resolvers of the machine that bakes. A missing file and an empty one mean the same:
		// resolv.conf(5).
		{
			name: host.ResolversFile,
			data: func() ([]byte, error) { return os.ReadFile("/etc/resolv.conf") },
			mode: 0o644,
		},
		// DKMS, from 3.0.4, signs with the key that the last of its settings names, and makes a key
		// if they name none.
		// Sources: read_framework_conf and prepare_signing in dkms.in of
		// https://github.com/dkms-project/dkms (v3.0.10, v3.2.0);
		// https://github.com/dkms-project/dkms/issues/273, where it signs with the key of these two
		// settings.
		{
			name:   host.DKMSFile,
			data:   i.dkmsSettings,
			mode:   0o644,
			folder: "/etc/dkms/framework.conf.d",
		},
		// rpm's plugin gives each script a mount namespace, which programs in an image may not
		// make: rpm-plugin-unshare(8), and rpm-plugins(8) on switching one off.
		{
			name: host.RPMFile,
			data: text("%__transaction_unshare %{nil}\n"),
			mode: 0o644,
		},
	}
}

// text returns a placeholder's data that is always the same.
func text(content string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(content), nil }
}

func (i *image) dkmsSettings() ([]byte, error) {
	if i.sign == nil {
		return nil, fs.ErrNotExist
	}
	return []byte("mok_signing_key=" + modulePrivate + "\nmok_certificate=" + moduleCertificate + "\n"), nil
}

// cover mounts a placeholder's file, once.
func (i *image) cover(p placeholder) (err error) {
	name := p.name
	if i.sandbox.covered[name] {
		return nil
	}
	defer func() { i.sandbox.covered[name] = err == nil }()

	data, err := p.data()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := i.makeFolder(p.folder); err != nil {
		return err
	}

	target, err := i.Readlink(p.name)
	isLink := err == nil
	if isLink {
		at := linkTarget(target, filepath.Dir(p.name))
		if strings.HasPrefix(at, "/run/") { // systemd-resolved's: the programs' /run is empty
			return i.sandbox.put(p, at, data)
		}
	}

	if _, err := i.Lstat(p.name); errors.Is(err, fs.ErrNotExist) {
		if _, err := i.Stat(filepath.Dir(p.name)); err != nil {
			return nil // no program of that image asks for it
		}
		if err := i.WriteFile(p.name, nil, host.Attr{Mode: host.PlaceholderMode}); err != nil {
			return err
		}
	}

	if _, err := i.Stat(p.name); isLink && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is a link to %s, which does not exist: remove the link", p.name, target)
	}

	p.name, err = i.Resolve(p.name)
	if err != nil {
		return err
	}
	return i.sandbox.put(p, "", data)
}

// makeFolder makes a folder and its parent, unless the name is empty.
func (i *image) makeFolder(name string) error {
	if name == "" {
		return nil
	}
	for _, dir := range []string{filepath.Dir(name), name} {
		err := i.Mkdir(dir, host.Attr{Mode: 0o755})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return nil
}

// linkTarget returns the path to which a link in a folder leads.
func linkTarget(target, folder string) string {
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
	return func() {
		i.uncover()
		unlock()
	}, nil
}

// uncover removes placeholders. What is mounted over them goes too: unlink(2) of a name that
// another namespace has mounted over.
func (i *image) uncover() {
	clear(i.sandbox.covered)
	for _, name := range host.Placeholders(i) {
		_ = i.Remove(name) // if it stays, it does nothing, and the next run removes it
	}
}
