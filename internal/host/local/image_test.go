// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// imageRoot is a root folder with this machine's programs, and nothing else of it.
func imageRoot(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	root := t.TempDir()
	for _, dir := range []string{"etc", "proc", "sys", "dev", "run", "tmp", "usr/sbin", "usr/bin", "usr/lib"} {
		must.OK(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, name := range []string{"bin", "lib"} {
		must.OK(t, os.Symlink("usr/"+name, filepath.Join(root, name)))
		bind(t, "/usr/"+name, filepath.Join(root, "usr", name))
	}

	if _, err := os.Stat("/lib64"); err == nil {
		must.OK(t, os.Mkdir(filepath.Join(root, "lib64"), 0o755))
		bind(t, "/lib64", filepath.Join(root, "lib64"))
	}
	return root
}

func bind(t *testing.T, source, target string) {
	t.Helper()
	must.OK(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		check.OK(t, unix.Unmount(target, unix.MNT_DETACH))
	})
}

func openImage(t *testing.T, root string) host.Host {
	t.Helper()
	h, done, err := Image(root, nil, nil)
	must.OK(t, err)
	t.Cleanup(done)
	return h
}

// mounts are those of the tests' own namespace: see leaveMounts.
func mounts(t *testing.T) string {
	t.Helper()
	return string(must.Get(os.ReadFile("/proc/self/mountinfo"))(t))
}

// An image's programs run in its root folder, with devices and resolvers, may start no daemon, and
// leave nothing.
func TestImageRunsPrograms(t *testing.T) {
	root, ctx := imageRoot(t), context.Background()
	before := mounts(t)
	h := openImage(t, root)
	check.That(t, !h.Live() && h.Runs(), "live %t, runs %t", h.Live(), h.Runs())
	unlock := must.Get(h.Lock())(t)
	script := `set -e
test ! -e ` + root + `; test -c /dev/null; echo x >/dev/null; test -d /proc/self; test -z "$(ls -A /run/systemd 2>/dev/null)"
test "$(readlink /proc/1/root)" != no
/usr/sbin/policy-rc.d && exit 1; test $? = 101
echo made >/tmp/made; cat /etc/resolv.conf`
	out, err := h.Do(ctx, "sh", "-c", script)
	resolv, readErr := os.ReadFile("/etc/resolv.conf")
	must.That(t, err == nil && (readErr != nil || string(out) == string(resolv)), "%q, %v", out, err)
	must.Get(h.ReadDir("/proc"))(t)
	names, _ := h.ReadDir("/proc")
	check.That(t, len(names) == 0, "files of the image are seen with what is mounted for programs")
	check.Equal(t, mounts(t), before, "mounts leak:")
	unlock()
	for _, name := range []string{"/usr/sbin/policy-rc.d", "/etc/resolv.conf"} {
		_, err := os.Lstat(root + name)
		check.That(t, err != nil, "%s is left behind", name)
	}

	made, err := os.ReadFile(root + "/tmp/made")
	check.That(t, err == nil && string(made) == "made\n", "%q, %v", made, err)
}

// A program of another party's image has no way to this machine: not to its processes, its files,
// its devices, its kernel's settings, its terminal and its modules. What it leaves at work ends
// with the bake.
func TestImageIsNotTheBuilder(t *testing.T) {
	root := imageRoot(t)
	h, done, err := Image(root, nil, nil)
	must.OK(t, err)
	ended := false
	defer func() {
		if !ended {
			done()
		}
	}()
	must.OK(t, unix.Mknod(filepath.Join(root, "tmp/full"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7)))) // as /dev/full
	said := string(must.Get(h.Do(t.Context(), "sh", "-c", `
echo processes: $(all=$(ls /proc); echo "$all" | grep -c '^[0-9]')
echo root: $(ls /proc/1/root 2>/dev/null) exe: $(readlink /proc/1/exe)
perl -e 'chroot "/tmp"; chdir ".." for 1..20; chroot "."; print "leaves its root folder\n" if -e "`+root+`"'
(mknod /tmp/made c 1 7 && head -c1 /tmp/made || head -c1 /tmp/full) >/dev/null 2>&1 && echo opens a device
mount -t tmpfs none /tmp 2>/dev/null && echo mounts
(echo 1 >/proc/sys/kernel/core_uses_pid) 2>/dev/null && echo sets the kernel
(: </dev/tty) 2>/dev/null && echo has a terminal
kill -TERM 1
setsid sleep 4711 >/dev/null 2>&1 &
until [ "$(tr '\0' ' ' </proc/$!/cmdline)" = "sleep 4711 " ]; do :; done
grep ^CapEff: /proc/self/status`))(t))
	before, mask, _ := strings.Cut(strings.TrimSpace(said), "CapEff:\t")
	check.That(t, before == "processes: 4\nroot: exe:\n", "a program finds:\n%s", said) // the first, sh twice, ls
	is := must.Get(strconv.ParseUint(mask, 16, 64))(t)
	const docker = 0xa80425fb // CapEff of a container by default: docs.docker.com, Runtime privilege and Linux capabilities
	check.That(t, is != 0 && is&^docker == 0, "programs have %x, which no container has", is)
	sleeps := func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		must.OK(t, err)
		return slices.ContainsFunc(all, func(name string) bool {
			line, _ := os.ReadFile(name)
			return string(line) == "sleep\x004711\x00"
		})
	}

	check.That(t, sleeps(), "what a program started is gone before the bake ends, or this test finds no process")
	done()
	ended = true
	check.That(t, !sleeps(), "a process of the image lives on when the bake has ended")
}

// What is asked about files finds them in the image, and the files go again.
func TestImageAskAbout(t *testing.T) {
	h := openImage(t, imageRoot(t))
	out, err := h.AskAbout(context.Background(), map[string][]byte{"a/b": []byte("at " + host.Scratch)}, "cat", host.Scratch+"/a/b")
	check.That(t, err == nil && strings.HasPrefix(string(out), "at /run/gpuadm-ask-"), "%q, %v", out, err)
	out, err = h.Ask(context.Background(), "ls", "-A", "/run")
	check.That(t, err == nil && string(out) == "lock\n", "left in /run: %q, %v", out, err)
}

// Programs find the module key where DKMS's settings say, and the image has neither the key nor the
// settings, in the bake or after it.
func TestImageModuleKey(t *testing.T) {
	root := imageRoot(t)
	h, done, err := Image(root, &ModuleKey{
		Private:     []byte("a private key\n"),
		Certificate: []byte("a certificate\n"),
	}, nil)
	must.OK(t, err)
	t.Cleanup(done)
	unlock := must.Get(h.Lock())(t)
	const script = `set -e; umask 0; . /etc/dkms/framework.conf.d/zz-gpuadm.conf
test "$(stat -c '%a %u' "$mok_signing_key")" = "600 0"; cat "$mok_signing_key" "$mok_certificate"`
	for range 2 {
		out, err := h.Do(context.Background(), "sh", "-c", script)
		must.That(t, err == nil && string(out) == "a private key\na certificate\n", "%q, %v", out, err)
	}

	const settings = "/etc/dkms/framework.conf.d/zz-gpuadm.conf"
	data, err := os.ReadFile(root + settings)
	check.That(t, err == nil && len(data) == 0, "in the bake the image's own file is %q, %v", data, err)
	names, err := os.ReadDir(root + "/run")
	check.That(t, err == nil && len(names) == 0, "the image's /run has %v, %v", names, err)
	unlock()
	_, err = os.Lstat(root + settings)
	check.That(t, err != nil, "DKMS's settings are left behind")
	plain := openImage(t, root)
	_, err = plain.Do(context.Background(), "test", "!", "-e", settings, "-a", "!", "-e", "/run/gpuadm-module.key")
	check.That(t, err == nil, "a bake without a key has one: %v", err)
}

// A bake that is killed leaves files that do nothing, and the next one removes them. Files of the
// image's own stay.
func TestImagePlaceholders(t *testing.T) {
	root := imageRoot(t)
	own := filepath.Join(root, "etc/resolv.conf")
	if err := os.WriteFile(own, nil, 0o644); err != nil { // empty, and the image's
		t.Fatal(err)
	}
	killed := openImage(t, root)
	must.Get(killed.Do(context.Background(), "true"))(t)
	left := filepath.Join(root, "usr/sbin/policy-rc.d")
	i, err := os.Stat(left)
	check.That(t, err == nil && i.Size() == 0 && i.Mode()&0o111 == 0, "a killed bake leaves %v, %v", i, err)
	unlock := must.Get(openImage(t, root).Lock())(t)
	unlock()
	_, err = os.Stat(left)
	check.That(t, err != nil, "the next bake leaves it, too")
	_, err = os.Stat(own)
	check.That(t, err == nil, "an empty file of the image's own is gone")
}

// A policy-rc.d that is a link forbids daemons, too. One that leads to no file could not, and is
// refused.
func TestImageLinkedPolicy(t *testing.T) {
	for _, there := range []bool{true, false} {
		root := imageRoot(t)
		if there {
			must.OK(t, os.WriteFile(filepath.Join(root, "etc/policy"), []byte("#!/bin/sh\nexit 0\n"), 0o755))
		}
		must.OK(t, os.Symlink("/etc/policy", filepath.Join(root, "usr/sbin/policy-rc.d")))
		_, err := openImage(t, root).Do(context.Background(), "sh", "-c", "/usr/sbin/policy-rc.d; test $? = 101")
		check.That(t, !there || err == nil, "%v", err)
		check.That(t, there || (err != nil && strings.Contains(err.Error(), "remove the link")), "a link to nothing: %v", err)
	}
}

// What this machine mounts during a bake does not come to the image's programs.
func TestImageGetsNoMount(t *testing.T) {
	root := imageRoot(t)
	place := filepath.Join(root, "tmp")
	for _, m := range []struct {
		source string
		flags  uintptr
	}{{place, unix.MS_BIND}, {"", unix.MS_SHARED}} {
		must.OK(t, unix.Mount(m.source, place, "", m.flags, ""))
	}

	defer unix.Unmount(place, unix.MNT_DETACH)
	h := openImage(t, root)
	must.OK(t, unix.Mount("tmpfs", place, "tmpfs", 0, ""))
	defer unix.Unmount(place, unix.MNT_DETACH)
	out, err := h.Ask(context.Background(), "sh", "-c", "grep -c ' /tmp .* tmpfs ' /proc/self/mountinfo")
	check.That(t, err != nil && string(out) == "0\n", "%q, %v", out, err)
}

// A build machine that becomes an image shows its files, and nothing of the kernel and the systemd
// that run.
func TestImageOfThisMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	before := mounts(t)
	h := openImage(t, "/")
	for _, dir := range []string{"/proc", "/sys", "/run"} {
		names, err := h.ReadDir(dir)
		check.That(t, err != nil || len(names) <= 3, "%s shows %v", dir, names)
	}

	if _, err := h.Stat("/etc/os-release"); err != nil {
		t.Error(err)
	}
	out, err := h.Ask(context.Background(), "sh", "-c", "ls -A /run; test -r /proc/self/status")
	check.That(t, err == nil && string(out) == "lock\n", "%q, %v", out, err)
	check.Equal(t, mounts(t), before, "mounts leak:")
}

// A folder that is not a root file system is refused before a program runs.
func TestImageIsARootFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	_, _, err := Image(t.TempDir(), nil, nil)
	check.That(t, err != nil && strings.Contains(err.Error(), "/proc"), "%v", err)
}

// TestImageBringsSelfAgain: if gpuadm's own file could not be brought to the programs, the next command
// tries again.
func TestImageBringsSelfAgain(t *testing.T) {
	h := openImage(t, imageRoot(t))
	i := h.(*image)
	const self = "/run/gpuadm"
	must.OK(t, i.sandbox.in(func() error { return os.Mkdir(self, 0o755) }))
	_, err := h.Do(t.Context(), "true")
	check.That(t, err != nil, "a folder is in the way, and no error")

	must.OK(t, i.sandbox.in(func() error { return os.Remove(self) }))
	_, err = h.Do(t.Context(), "test", "-x", self)
	check.OK(t, err)
}

// noFirst is set where the first process of an image's programs fails, and is what it then says.
const noFirst = "GPUADM_TEST_NO_FIRST"

// TestImageWithoutProc: if the kernel refuses to mount /proc, as in a container without all rights,
// gpuadm says so before it runs a program.
func TestImageWithoutProc(t *testing.T) {
	root := imageRoot(t)
	t.Setenv(noFirst, "1")
	h, done, err := Image(root, nil, nil)
	if err == nil {
		defer done()
		_, err := h.Ask(t.Context(), "true")
		t.Fatalf("the image was opened, and then: %v", err)
	}
	check.That(t, strings.Contains(err.Error(), noFirst), "%v", err)
}

// TestBakeExcludesApply: a bake of the running machine and an apply exclude each other: they have
// one journal.
func TestBakeExcludesApply(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may make a mount namespace")
	}
	unlock := must.Get(new(runLock).take(lockFile))(t)
	defer unlock()
	if unlock, err := openImage(t, "/").Lock(); !errors.As(err, new(*host.Busy)) {
		if err == nil {
			unlock()
		}
		t.Errorf("while another run has the machine's lock: %v, want *Busy", err)
	}
}
