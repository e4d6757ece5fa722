// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"golang.org/x/sys/unix"
)

// sandbox is where an image's programs run: a mount and a PID namespace, whose root folder is the
// image. It belongs to one thread of this process: files that gpuadm reads and writes by other
// threads are the image's own, without what is mounted for its programs.
type sandbox struct {
	work    chan func()    // what the thread is to do
	dir     files.RealDisk // the image, in the namespace
	root    bool           // the image is the thread's root folder
	files   *os.File       // the namespace of its files, if that is another one
	covered map[string]bool
	first   *exec.Cmd // the first process of the programs' PID namespace: First
	hold    io.Closer // ends the first process
}

// FirstVerb is the verb with which gpuadm starts itself as the first process of the PID namespace
// of an image's programs.
const FirstVerb = "hold-image"

// First mounts the programs' /proc on descriptor 3, says so by a line to said, and holds their PID
// namespace until standard input ends. When First ends, the kernel ends all processes that are left
// in the namespace: pid_namespaces(7).
func First(stdin io.Reader, said io.WriteCloser) error {
	// libc6's script asks process 1 to restart; and orphans vanish when they end: wait(2) under
	// SIGCHLD.
	signal.Ignore()
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("proc", "/proc/self/fd/3", "proc", flags, "")
	if err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	_, err = io.WriteString(said, "mounted\n")
	if err != nil {
		return err
	}
	said.Close()
	_, err = io.Copy(io.Discard, stdin)
	return err
}

// openSandbox makes the namespace, and returns the image's disk: that of named, or, if the image is
// this machine itself, a disk without what the running kernel and systemd show.
func openSandbox(abs string, named files.RealDisk) (*sandbox, files.RealDisk, error) {
	s := &sandbox{work: make(chan func()), dir: -1, covered: map[string]bool{}}
	disk := named
	go s.serve()
	err := s.in(func() (err error) {
		if err := unshare(); err != nil {
			return err
		}
		if abs == "/" {
			abs, disk, err = s.showWholeMachine()
		} else {
			err = mountItself(abs)
		}

		if err != nil {
			return err
		}

		s.dir, err = files.OpenRoot(abs)
		if err != nil {
			return err
		}
		for _, step := range []func() error{s.begin, s.furnish, s.become, dropRights} {
			if err := step(); err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		s.end()
		return nil, -1, err
	}
	return s, disk, nil
}

// unshare gives this thread its own mounts and its own umask.
func unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("cannot make a mount namespace: %w; run as root, with CAP_SYS_ADMIN", err)
	}
	unix.Umask(0o022) // of this thread alone from here on: unshare(2), clone(2) under CLONE_FS
	// What is mounted here stays here, and what the machine mounts does not come here:
	// mount_namespaces(7).
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot keep mounts apart: %w", err)
	}
	return nil
}

// mountItself makes a folder a mount: only a mount can become a root folder.
func mountItself(folder string) error {
	if err := unix.Mount(folder, folder, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot mount it for its programs: %w", err)
	}
	return nil
}

// showWholeMachine mounts this machine's files at a second place, and makes one more namespace for
// the programs. The disk belongs to the first namespace, which exists as long as a descriptor of
// it: nothing is mounted for programs there.
func (s *sandbox) showWholeMachine() (at string, disk files.RealDisk, err error) {
	at, disk, err = wholeMachine()
	if err != nil {
		return "", -1, err
	}
	s.files, err = os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return "", -1, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return "", -1, fmt.Errorf("cannot make a mount namespace: %w", err)
	}
	return at, disk, nil
}

// begin starts the first process of the programs' PID namespace, in which this thread then starts
// programs.
func (s *sandbox) begin() error {
	place, err := s.open("proc")
	if err != nil {
		return err
	}
	defer place.Close()
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{"gpuadm", FirstVerb},
		Dir:         "/",
		ExtraFiles:  []*os.File{place},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Setsid: true},
	}
	var stderr commands.Tail
	cmd.Stderr = &stderr
	hold, err1 := cmd.StdinPipe()
	said, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return fmt.Errorf("cannot make a PID namespace: %w", err)
	}

	mounted, _ := io.Copy(io.Discard, said) // it ends once /proc is mounted, or with the process
	if mounted == 0 {
		hold.Close()
		err := cmd.Wait()
		why := strings.ReplaceAll(stderr.String(), "\n", "; ") // an error is one line
		return fmt.Errorf("cannot begin the PID namespace of its programs: %w: %s", err, why)
	}

	s.first = cmd
	s.hold = hold
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", cmd.Process.Pid))
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
		ns.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot enter the PID namespace of its programs: %w", err)
	}

	return nil
}

// become makes the image the root folder of this thread, of the first process and of all programs.
// No path leads out of it: this machine's other mounts are not in the namespace any more. Device
// nodes that the image has, or that programs make, open nothing: those in /dev are mounted from
// this machine. A kernel before 5.12 cannot forbid device nodes this way.
func (s *sandbox) become() error {
	if err := unix.Fchdir(int(s.dir)); err != nil {
		return err
	}
	// The old root folder is then mounted over the new one: pivot_root(2), Notes.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot make it the root folder of its programs: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount this machine's files: %w", err)
	}
	s.root = true
	return unix.Chdir("/")
}

// needed lists the capabilities that scripts of packages need: those of a container in which
// Buildah runs them, and CAP_MKNOD, for dracut. The others include the rights to load modules into
// the running kernel, to mount, to read disks, and to trace this process's child.
// Sources: default_capabilities in
// https://github.com/containers/common/blob/main/pkg/config/default.go, mknod in dracut.sh of
// https://github.com/dracut-ng/dracut-ng.
var needed = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD,
	unix.CAP_SETFCAP, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETUID,
	unix.CAP_KILL, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT,
}

// dropRights takes all other capabilities from this thread's programs, not from the thread: the
// bounding set of capabilities(7).
func dropRights() error {
	for right := uintptr(0); right <= unix.CAP_LAST_CAP; right++ {
		// An error says that this kernel does not know the capability.
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, right, 0, 0, 0)
		if err != nil || has == 0 || slices.Contains(needed, right) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, right, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot take capabilities from its programs: %w; run with CAP_SETPCAP", err)
		}
	}
	return nil
}

// serve runs what is to be done in the namespace. No other goroutine ever runs on its thread, which
// ends with it.
func (s *sandbox) serve() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // /proc/self shows the namespaces of the process's first thread
		ended := make(chan struct{})
		go func() {
			s.serve()
			close(ended)
		}()
		<-ended
		runtime.UnlockOSThread()
		return
	}

	for do := range s.work {
		do()
	}
}

// in runs a function on the namespace's thread, and waits for its end.
func (s *sandbox) in(do func() error) (err error) {
	ended := make(chan struct{})
	s.work <- func() {
		err = do()
		close(ended)
	}
	<-ended
	return err
}

func (s *sandbox) end() {
	close(s.work)
	s.files.Close() // of nil it does nothing
	if s.first != nil {
		s.hold.Close()
		_ = s.first.Wait() // until the last of its processes is gone
	}
	if s.dir >= 0 {
		unix.Close(int(s.dir))
	}
}

// path returns the image's folder, for the namespace's thread and for processes that it starts.
func (s *sandbox) path() string {
	if s.root {
		return ""
	}
	return fmt.Sprintf("/proc/self/fd/%d", s.dir)
}

// wholeMachine shows this machine's files at one more place, without what only the running machine
// has.
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

// furnish mounts what programs need: devices, a /run in memory. Of the kernel's objects they see
// those of the machine that bakes, read-only, without what is mounted among them: its EFI variables
// say nothing of the image.
func (s *sandbox) furnish() error {
	nodev := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	_ = unix.MountSetattr(int(s.dir), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &nodev) // see become
	for _, m := range []struct {
		source, name, kind string
		flags              uintptr
		options            string
	}{
		{"/sys", "sys", "", unix.MS_BIND, ""},
		{"/sys", "sys", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{"gpuadm", "run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"gpuadm", "dev", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	} {
		if _, err := os.Lstat(m.source); m.name == "sys" && errors.Is(err, fs.ErrNotExist) {
			continue // mkosi's scripts have no /sys (mkosi/sandbox.py and run.py)
		}
		if err := s.mount(m.source, m.name, m.kind, m.flags, m.options); err != nil {
			return err
		}
	}

	for _, name := range []string{"run/lock", "dev/pts", "dev/shm"} {
		if err := os.Mkdir(filepath.Join(s.path(), name), 0o1777); err != nil {
			return err
		}
	}

	const ptsOptions = "newinstance,ptmxmode=0666,mode=620"
	if err := s.mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, ptsOptions); err != nil {
		return err
	}
	return s.makeDevices()
}

// makeDevices makes the links in /dev, and mounts this machine's devices that hold nothing.
func (s *sandbox) makeDevices() error {
	for name, target := range map[string]string{
		"ptmx":   "pts/ptmx",
		"fd":     "/proc/self/fd",
		"stdin":  "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(s.path(), "dev", name)); err != nil {
			return err
		}
	}

	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		place := filepath.Join(s.path(), "dev", name)
		if err := os.WriteFile(place, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, place, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot mount /dev/%s: %w", name, err)
		}
	}

	return nil
}

// mount mounts over a folder of the image.
func (s *sandbox) mount(source, name, kind string, flags uintptr, options string) error {
	at, err := s.open(name)
	if err != nil {
		return err
	}
	defer at.Close()
	target := fmt.Sprintf("/proc/self/fd/%d", at.Fd())
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("cannot mount /%s: %w", name, err)
	}
	return nil
}

// open opens a folder of the image. A link is not followed: it could lead out of the image.
func (s *sandbox) open(name string) (*os.File, error) {
	at := int(s.dir)
	for _, part := range files.Parts(name) {
		next, err := files.OpenAt(at, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if at != int(s.dir) {
			unix.Close(at)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot open /%s in it, which a root file system has: %w", name, err)
		}
		at = next
	}

	return os.NewFile(uintptr(at), name), nil
}

// put mounts a placeholder's file over its name, or writes it to a name in /run.
func (s *sandbox) put(p placeholder, inRun string, data []byte) error {
	return s.in(func() error {
		if inRun != "" {
			place := s.path() + inRun
			if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
				return err
			}
			return os.WriteFile(place, data, os.FileMode(p.mode))
		}

		source := s.path() + "/run/gpuadm-" + path.Base(p.name)
		if err := os.WriteFile(source, data, os.FileMode(p.mode)); err != nil {
			return err
		}
		if err := unix.Mount(source, s.path()+p.name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot mount %s: %w", p.name, err)
		}
		return nil
	})
}

// keep writes the module key to the namespace's /run, which goes with it.
func (s *sandbox) keep(sign *ModuleKey) error {
	if sign == nil {
		return nil
	}
	if err := s.put(placeholder{mode: 0o600}, modulePrivate, sign.Private); err != nil {
		return err
	}
	return s.put(placeholder{mode: 0o644}, moduleCertificate, sign.Certificate)
}
