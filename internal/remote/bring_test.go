// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBringSweeps: the next session removes the copy that a power cut has left in a login's home,
// and none of this boot, whose run may be at work, nor that of another machine that shares the home.
func TestBringSweeps(t *testing.T) {
	const someUser = 65534
	home := must.Get(os.MkdirTemp("/var/tmp", "gpuadm-home-"))(t)
	t.Cleanup(func() { os.RemoveAll(home) })
	boot, _, _ := strings.Cut(string(must.Get(os.ReadFile("/proc/sys/kernel/random/boot_id"))(t)), "-")
	machine := must.Get(os.Hostname())(t)
	left := filepath.Join(home, ".gpuadm-ssh."+machine+"-01234567.AbCdEf")
	atWork := filepath.Join(home, ".gpuadm-ssh."+machine+"-"+boot+".AbCdEf")
	others := filepath.Join(home, ".gpuadm-ssh.another-01234567.AbCdEf")
	alike := filepath.Join(home, ".gpuadm-ssh."+machine+"-2-01234567.AbCdEf")
	for _, folder := range []string{left, atWork, others, alike} {
		must.OK(t, os.Mkdir(folder, 0o700))
		must.OK(t, os.WriteFile(filepath.Join(folder, "gpuadm"), []byte("half"), 0o700))
	}

	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", bring)
	cmd.Env = []string{"HOME=" + home}
	if os.Getuid() == 0 { // root's copies lie in /run, which a power cut empties
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: someUser,
			Gid: someUser,
		}}
		must.OK(t, exec.CommandContext(t.Context(), "chown", "-R", fmt.Sprint(someUser), home).Run())
	}

	out, _ := cmd.CombinedOutput() // it ends with 1: no program comes
	must.That(t, strings.Contains(string(out), mark+"machine"), "the session says %q", out)

	found := must.Get(filepath.Glob(home + "/.gpuadm-ssh.*"))(t)
	want := []string{others, atWork, alike}
	slices.Sort(want)
	check.List(t, found, want, "copies:")
}
