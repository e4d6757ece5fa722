// SPDX-License-Identifier: Apache-2.0

// Package swap is an attacker for tests: a process without rights that exchanges two names in a
// folder, over and over.
package swap

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// UID owns the folder, and is the user that the process runs as where the test is root.
const UID = 65534

// names is in the environment of the process: the two names that it exchanges, with a slash between
// them.
const names = "GPUADM_TEST_SWAP"

// Child is that process if this one was started for it, and does nothing else. A package's TestMain
// calls it first.
func Child() {
	a, b, asked := strings.Cut(os.Getenv(names), "/")
	if !asked {
		return
	}
	var end atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end.Store(true)
	}()
	for swaps := 0; ; swaps++ {
		if swaps == 2 {
			fmt.Println("swapping")
		}
		if end.Load() && swaps%2 == 0 {
			fmt.Println(swaps)
			os.Exit(0)
		}
		if err := unix.Renameat2(3, a, 3, b, unix.RENAME_EXCHANGE); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

// Start begins to exchange a and b in a folder, which it gives to UID, and returns when it has
// exchanged them twice. The names are as they were when stop has returned.
func Start(t testing.TB, folder, a, b string) (stop func()) {
	t.Helper()
	dir := must.Get(os.Open(folder))(t)
	defer dir.Close()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), names+"="+a+"/"+b)
	child.ExtraFiles = []*os.File{dir}
	child.Stderr = os.Stderr
	if os.Geteuid() == 0 {
		must.OK(t, dir.Chown(UID, UID))
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: UID,
			Gid: UID,
		}}
	}

	in := must.Get(child.StdinPipe())(t)
	out := must.Get(child.StdoutPipe())(t)
	must.OK(t, child.Start())
	says := bufio.NewReader(out)
	output, err := says.ReadString('\n')
	must.That(t, output == "swapping\n", "nothing is swapped: %q (%v)", output, err)
	return func() {
		in.Close()
		output, _ := io.ReadAll(says)
		err := child.Wait()
		check.That(t, err == nil, "the swapping ended: %v (%s)", err, output)
		t.Logf("swapped %s times", strings.TrimSpace(string(output)))
	}
}
