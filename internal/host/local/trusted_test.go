// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// faults is what Trusted says of names, in one line.
func faults(t *testing.T, h host.View, names ...string) string {
	t.Helper()
	err := h.Trusted(names...)
	u := (*host.Untrusted)(nil)
	if err == nil {
		return ""
	} else if !errors.As(err, &u) {
		t.Fatalf("not an *Untrusted: %v", err)
	}

	for i := range u.Owners {
		u.Owners[i].For = ""
	}
	for i := range u.Modes {
		u.Modes[i].For = ""
	}
	return strings.ReplaceAll(fmt.Sprint(u.Name, u.Owners, u.Modes), " }", "}")
}

// TestTrusted: who can write to a file, or to a folder on the way to it, can replace what is read
// there.
func TestTrusted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files to others")
	}
	both(t, func(t *testing.T, h host.Host) {
		for _, dir := range []string{"/a", "/a/b", "/theirs", "/open"} {
			must.OK(t, h.Mkdir(dir, ownedBySelf(0o755)))
		}
		for _, name := range []string{"/a/b/x", "/theirs/x", "/open/x"} {
			must.OK(t, h.WriteFile(name, nil, ownedBySelf(0o644)))
		}
		must.OK(t, h.SetAttr("/theirs", host.Attr{Mode: 0o755, UID: 7, GID: 7}))
		must.OK(t, h.SetAttr("/open", ownedBySelf(fs.ModeSticky|0o777)))
		must.OK(t, h.WriteFile("/a/foreign", nil, host.Attr{
			Mode: 0o664,
			UID:  7,
			GID:  7,
		}))
		must.OK(t, h.WriteFile("/a/group", nil, host.Attr{Mode: 0o664, GID: 7}))
		must.OK(t, h.WriteFile("/a/read", nil, host.Attr{Mode: 0o444, GID: 7}))
		for link, target := range map[string]string{
			"/a/good": "b/x", "/a/into": "/theirs/x", "/a/up": "b/../../theirs/x", "/theirs/link": "/a/b/x", "/a/loop": "loop", "/a/dangling": "/open/nothing", "/a/out": "../../../../a/b/x",
		} {
			must.OK(t, h.Symlink(link, target))
		}

		for name, want := range map[string]string{
			"/":           "",
			"/a/b/x":      "",
			"/a/read":     "",
			"/a/good":     "",
			"/a/out":      "",
			"/a/loop":     "",
			"/a/nothing":  "",
			"/theirs/x":   "/theirs/x[{user 7 owns /theirs}] []",
			"/theirs/no":  "/theirs/no[{user 7 owns /theirs}] []",
			"/open/x":     "/open/x[] [{all users can write to /open}]",
			"/a/foreign":  "/a/foreign[{user 7 owns /a/foreign}] [{its group can write to /a/foreign}]",
			"/a/group":    "/a/group[] [{its group can write to /a/group}]",
			"/a/into":     "/a/into[{user 7 owns /theirs}] []",
			"/a/up":       "/a/up[{user 7 owns /theirs}] []",
			"/a/dangling": "/a/dangling[] [{all users can write to /open}]",
			// The link is another user's to replace, wherever it leads.
			"/theirs/link": "/theirs/link[{user 7 owns /theirs}] []",
		} {
			check.Equal(t, faults(t, h, name), want, "%s:", name)
		}

		got, want := faults(t, h, "/a/b/x", "/theirs/x", "/theirs/link", "/a/group"), "/theirs/x[{user 7 owns /theirs}] [{its group can write to /a/group}]"
		check.That(t, got == want, "together: %q, want %q", got, want)
		must.OK(t, h.SetAttr("/", ownedBySelf(0o775)))
		got, want = faults(t, h, "/a/b/x"), "/a/b/x[] [{its group can write to /}]"
		check.That(t, got == want, "below a root that others write to: %q, want %q", got, want)
	})
}

// TestTwoUntrusted: the error names a file with its own fault, whatever the other one's is.
func TestTwoUntrusted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files to others")
	}
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.WriteFile("/open", nil, ownedBySelf(0o666)))
		must.OK(t, h.WriteFile("/theirs", nil, host.Attr{
			Mode: 0o644,
			UID:  7,
			GID:  7,
		}))

		for _, names := range [][]string{{"/open", "/theirs"}, {"/theirs", "/open"}} {
			want := map[string]string{
				"/open":   "all users can write to",
				"/theirs": "user 7 owns",
			}
			first, second := names[0], names[1]

			err := h.Trusted(names...)
			check.Equal(t, err.Error(), "cannot trust "+first+": "+want[first]+" "+first, "%v:", names)

			var u *host.Untrusted
			must.That(t, errors.As(err, &u), "not an *Untrusted: %v", err)
			whys, commands := u.Fix("/")
			expected := want[first] + " it; " + want[second] + " " + second
			check.Equal(t, strings.Join(whys, "; "), expected, "%v, reasons:", names)
			check.Equal(t, len(commands), 2, "commands for %v", names)
		}
	})
}

// TestTrustedDevice: what is neither a file nor a folder holds nothing that is read, and a chmod of
// /dev/null breaks the machine.
func TestTrustedDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a device")
	}
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o755))
	must.OK(t, syscall.Mknod(filepath.Join(dir, "null"), syscall.S_IFCHR|0o666, 1<<8|3))
	must.OK(t, os.Chmod(filepath.Join(dir, "null"), 0o666))
	must.OK(t, os.Symlink("/null", filepath.Join(dir, "masked")))
	must.OK(t, os.Mkdir(filepath.Join(dir, "open"), 0o777))
	must.OK(t, os.Chmod(filepath.Join(dir, "open"), 0o777))
	must.OK(t, os.Symlink("/null", filepath.Join(dir, "open/masked")))
	h := must.Get(local.Open(dir))(t)
	for name, want := range map[string]string{"/null": "", "/masked": "", "/open/masked": "/open/masked[] [{all users can write to /open}]"} {
		check.Equal(t, faults(t, h, name), want, "%s:", name)
	}
}

// TestTrustedUnprivileged: without root the caller's own files count as root's, and no other user's
// do.
func TestTrustedUnprivileged(t *testing.T) {
	const folder = "GPUADM_TEST_TRUSTED"
	if dir := os.Getenv(folder); dir != "" { // the child, without root
		h := must.Get(local.Open(dir))(t)
		for name, want := range map[string]string{"/mine": "", "/roots": "", "/others": "/others[{user 7 owns /others}] []"} {
			got := faults(t, h, name)
			check.That(t, got == want && os.Getuid() != 0, "as user %d, %s: %q, want %q", os.Getuid(), name, got, want)
		}

		return
	}

	if os.Getuid() != 0 {
		t.Skip("only root can give files to others")
	}
	const user = 65534
	dir, err := os.MkdirTemp("", "gpuadm-test-") // /dev/shm may run no programs, and t.TempDir lets no other user in
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.OK(t, os.Chown(dir, user, user))
	for name, uid := range map[string]int{"mine": user, "roots": 0, "others": 7} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must.OK(t, os.Chown(filepath.Join(dir, name), uid, uid))
	}

	self := must.Get(os.ReadFile("/proc/self/exe"))(t)
	program := filepath.Join(dir, "test") // where this program lies may be for root's eyes alone
	must.OK(t, os.WriteFile(program, self, 0o755))
	cmd := exec.Command(program, "-test.run=^TestTrustedUnprivileged$", "-test.v")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), folder+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
		Uid: user,
		Gid: user,
	}}
	out, err := cmd.CombinedOutput()
	check.That(t, err == nil, "%v\n%s", err, out)
}
