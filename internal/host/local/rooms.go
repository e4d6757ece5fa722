// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/gpuadm/gpuadm/internal/host/files"
	"golang.org/x/sys/unix"
)

// rooms is the mount namespace in which an image's programs run. It belongs to one thread of this process: files that gpuadm reads
// and writes by other threads are the image's own, without what is mounted for its programs.
type rooms struct {
	work    chan func()
	dir     files.RealDisk // the image, in the namespace
	files   *os.File       // the namespace of its files, where that is another one
	covered map[string]bool
}

// openRooms makes the namespace, and returns the image's disk: that of named, or, where the image is this machine itself, a disk
// without what the running kernel and systemd show.
func openRooms(abs string, named files.RealDisk) (r *rooms, disk files.RealDisk, err error) {
	r, disk = &rooms{work: make(chan func()), dir: -1, covered: map[string]bool{}}, named
	go r.serve()
	err = r.in(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("cannot make a mount namespace: %w; run as root, with CAP_SYS_ADMIN", err)
		}
		if err := keepModules(); err != nil {
			return err
		}
		unix.Umask(0o022) // of this thread alone from here on: unshare(2), clone(2) under CLONE_FS
		// What is mounted here stays here, and what the machine unmounts goes here, too: mount_namespaces(7).
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("cannot keep mounts apart: %w", err)
		}
		if abs == "/" {
			if abs, disk, err = wholeMachine(); err != nil {
				return err
			}
			// disk is of this namespace, which lives as long as a descriptor of it: nothing is mounted for programs there.
			if r.files, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
				return err
			}
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("cannot make a mount namespace: %w", err)
			}
		}
		opened, err := files.OpenRoot(abs)
		if err != nil {
			return err
		}
		r.dir = opened
		return r.furnish()
	})
	if err != nil {
		r.end()
		return nil, -1, err
	}
	return r, disk, nil
}

// keepModules takes from this thread's programs the right to load and to remove modules: the kernel that runs is not the image's.
// Packages' scripts call modprobe, and NVIDIA's installer removes a driver that nothing uses (check_for_unloaded_kernel_module in
// kernel.c of https://github.com/NVIDIA/nvidia-installer). The bounding set is the thread's, and its programs have it: capabilities(7).
func keepModules() error {
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_MODULE, 0, 0, 0); err == nil && has == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_MODULE, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot keep its programs from the running kernel's modules: %w; run with CAP_SETPCAP", err)
	}
	return nil
}

// serve runs what is to be done in the namespace. The thread never serves another goroutine: at its end it is gone.
func (r *rooms) serve() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the process's first thread: /proc/self tells of its namespaces
		ended := make(chan struct{})
		go func() { r.serve(); close(ended) }()
		<-ended
		runtime.UnlockOSThread()
		return
	}
	for do := range r.work {
		do()
	}
}

// in runs a function by the namespace's thread, to its end.
func (r *rooms) in(do func() error) (err error) {
	ended := make(chan struct{})
	r.work <- func() { err = do(); close(ended) }
	<-ended
	return err
}

func (r *rooms) end() {
	close(r.work)
	r.files.Close() // nil is no file: os.ErrInvalid
	if r.dir >= 0 {
		unix.Close(int(r.dir))
	}
}

// path is the image's folder, for the namespace's thread and for processes that it starts.
func (r *rooms) path() string { return fmt.Sprintf("/proc/self/fd/%d", r.dir) }

// wholeMachine shows this machine's files at one more place, without what only the running machine has.
func wholeMachine() (at string, disk files.RealDisk, err error) {
	at = "/run/image"
	if err := unix.Mount("gpuadm", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return "", -1, fmt.Errorf("cannot mount /run: %w", err)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		return "", -1, err
	}
	if err := unix.Mount("/", at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", -1, fmt.Errorf("cannot mount this machine's files at a second place: %w", err)
	}
	for _, name := range []string{"proc", "sys", "dev", "run"} {
		if err := unix.Mount("gpuadm", path.Join(at, name), "tmpfs", 0, "mode=755"); err != nil {
			return "", -1, fmt.Errorf("cannot hide /%s: %w", name, err)
		}
	}
	disk, err = files.OpenRoot(at)
	return at, disk, err
}

// furnish mounts what programs need: processes, devices, a /run in memory. Of the kernel's objects they see those of the machine
// that bakes, read-only, without what is mounted among them: its EFI variables say nothing of the image.
func (r *rooms) furnish() error {
	for _, m := range []struct {
		source, name, kind string
		flags              uintptr
		options            string
	}{
		{"/proc", "proc", "", unix.MS_BIND, ""},
		{"/sys", "sys", "", unix.MS_BIND, ""},
		{"/sys", "sys", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{"gpuadm", "run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"gpuadm", "dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
	} {
		if _, err := os.Lstat(m.source); m.name == "sys" && errors.Is(err, fs.ErrNotExist) {
			continue // mkosi's scripts have none (mkosi/sandbox.py and run.py); the image's programs do without
		}
		if err := r.mount(m.source, m.name, m.kind, m.flags, m.options); err != nil {
			return err
		}
	}
	for _, name := range []string{"run/lock", "dev/pts", "dev/shm"} {
		if err := os.Mkdir(filepath.Join(r.path(), name), 0o1777); err != nil {
			return err
		}
	}
	if err := r.mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(r.path(), "dev", name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		place := filepath.Join(r.path(), "dev", name)
		if err := os.WriteFile(place, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, place, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot mount /dev/%s: %w", name, err)
		}
	}
	return nil
}

// mount mounts over a folder of the image. A link is not followed: it could lead out of the image.
func (r *rooms) mount(source, name, kind string, flags uintptr, options string) error {
	at := r.dir
	for _, part := range files.Parts(name) {
		next, err := files.OpenAt(int(at), part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("cannot open /%s in it, which a root file system has: %w", name, err)
		}
		defer unix.Close(next)
		at = files.RealDisk(next)
	}
	if err := unix.Mount(source, fmt.Sprintf("/proc/self/fd/%d", at), kind, flags, options); err != nil {
		return fmt.Errorf("cannot mount /%s: %w", name, err)
	}
	return nil
}

// put mounts a placeholder's file over its name, or writes it to a name in /run.
func (r *rooms) put(p placeholder, inRun string, data []byte) error {
	return r.in(func() error {
		if inRun != "" {
			place := r.path() + inRun
			if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
				return err
			}
			return os.WriteFile(place, data, os.FileMode(p.mode))
		}
		ours := r.path() + "/run/gpuadm-" + path.Base(p.name)
		if err := os.WriteFile(ours, data, os.FileMode(p.mode)); err != nil {
			return err
		}
		if err := unix.Mount(ours, r.path()+p.name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot mount %s: %w", p.name, err)
		}
		return nil
	})
}

// keep writes the module key to the namespace's /run, which goes with it.
func (r *rooms) keep(sign *ModuleKey) error {
	if sign == nil {
		return nil
	}
	if err := r.put(placeholder{mode: 0o600}, modulePrivate, sign.Private); err != nil {
		return err
	}
	return r.put(placeholder{mode: 0o644}, moduleCertificate, sign.Certificate)
}
