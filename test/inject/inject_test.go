// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/inject"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/swap"
)

func TestMain(m *testing.M) {
	swap.Child()
	if err, asked := asProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	} else if asked {
		os.Exit(0)
	}

	status := m.Run()
	if dir, err := scratch(); err != nil || os.RemoveAll(dir) != nil {
		status = 1
	}
	os.Exit(status)
}

// take runs the known steps in a folder with one injection.
func take(t *testing.T, in inject.Injection) (dir string, r inject.Result) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stepsFolder+"="+dir)
	if in.Kind == inject.Signal {
		cmd.Env = append(cmd.Env, waits+"=1")
	}
	if in.Kind == inject.Full {
		cmd.Env = append(cmd.Env, goesOn+"=1")
	}
	r, err := inject.Run(cmd, in)
	must.OK(t, err)
	for i, c := range r.Calls {
		must.That(t, i < len(steps()), "counted %q beyond the last step", c)
		want := steps()[i]
		got := strings.ReplaceAll(c.What, dir+"/", "")
		check.That(t, c.Name == want.call && got == want.what, "call %d is %s %s, not %s %s", i+1, c.Name, got, want.call, want.what)
	}

	check.That(t, in.At <= 0 || !in.Counts(inject.Call{Name: "fsync"}) || (r.Hit != nil && *r.Hit == r.Calls[in.At-1]), "hit %v, not call %d of %v", r.Hit, in.At, r.Calls)
	return dir, r
}

// output is what the program prints when it takes its first n steps.
func output(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, "step", i+1)
	}
	return b.String()
}

func TestCalls(t *testing.T) {
	t.Parallel()
	_, r := take(t, inject.Injection{})
	check.That(t, r.Exit == 0 && r.Stderr == "" && r.Stdout == output(len(steps())) && len(r.Calls) == len(steps()) && r.Hit == nil,
		"exit %d, %q, %q, calls %v, hit %v", r.Exit, r.Stdout, r.Stderr, r.Calls, r.Hit)
}

// TestAtEachCall injects at each of the known calls: two kinds that end the program, by turns, then
// two errors, and now and then a signal.
func TestAtEachCall(t *testing.T) {
	t.Parallel()
	all := len(steps())
	for n := 1; n <= all; n++ {
		ends := inject.Injection{
			Kind: []inject.Kind{inject.Kill, inject.KillAfter}[n%2],
			At:   n,
		}
		if _, r := take(t, ends); r.Exit != 128+9 || r.Stdout != output(n-1) || len(r.Calls) != n {
			t.Errorf("%v at %d: exit %d, %q, calls %v", ends, n, r.Exit, r.Stdout, r.Calls)
		}
		fails := inject.Injection{
			Kind:  inject.Errno,
			At:    n,
			Errno: []unix.Errno{unix.EIO, unix.ENOSPC}[n%2],
		}
		text := fails.Errno.Error()
		if n == all {
			text = "exit status 1" // its child's
		}
		_, r := take(t, fails)
		check.That(t, r.Exit == 1 && r.Stdout == output(n-1) && len(r.Calls) == n && strings.HasSuffix(r.Stderr, text+"\n"),
			"%v at %d: exit %d, %q, %q, calls %v", fails, n, r.Exit, r.Stdout, r.Stderr, r.Calls)
		if n%4 == 0 {
			_, r := take(t, inject.Injection{
				Kind:   inject.Signal,
				At:     n,
				Signal: unix.SIGTERM,
			})
			check.That(t, r.Exit == 0 && r.Stdout == output(all)+"terminated\n" && len(r.Calls) == all, "signal at %d: exit %d, %q, calls %v", n, r.Exit, r.Stdout, r.Calls)
		}
	}
}

// TestEffect checks what an injected call has done: nothing, all of it, or half.
func TestEffect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   inject.Injection
		name string
		want string // "none" is that it is not there
	}{
		{inject.Injection{Kind: inject.Kill, At: 2}, "a", "none"},
		{inject.Injection{Kind: inject.KillAfter, At: 2}, "a", ""},
		{inject.Injection{Kind: inject.Errno, At: 2, Errno: unix.EIO}, "a", "none"},
		{inject.Injection{Kind: inject.Kill, At: 3}, "a", ""},
		{inject.Injection{Kind: inject.KillAfter, At: 3}, "a", "twelve bytes"},
		{inject.Injection{Kind: inject.Errno, At: 3, Errno: unix.ENOSPC}, "a", ""},
		{inject.Injection{Kind: inject.Torn, At: 1}, "a", "twelve"},
		{inject.Injection{Kind: inject.Torn, At: 2}, "a", "TWElve bytes"},
		{inject.Injection{Kind: inject.Kill, At: 13}, "b", "none"},
		{inject.Injection{Kind: inject.KillAfter, At: 13}, "b", "TWELVE"},
		{inject.Injection{Kind: inject.Errno, At: 13, Errno: unix.EIO}, "a", "TWELVE"},
	} {
		dir, r := take(t, c.in)
		got, err := os.ReadFile(filepath.Join(dir, c.name))
		if os.IsNotExist(err) {
			got, err = []byte("none"), nil
		}
		check.That(t, err == nil && string(got) == c.want, "%v at %d: %s has %q, %v, not %q (exit %d)", c.in, c.in.At, c.name, got, err, c.want, r.Exit)
		check.That(t, r.Hit != nil, "%v at %d: not reached", c.in, c.in.At)
		check.That(t, c.in.Kind != inject.Torn || r.Exit == 128+9, "torn: exit %d", r.Exit)
	}
}

// TestFull: from one call on there is no room, and what needs none still works.
func TestFull(t *testing.T) {
	t.Parallel()
	_, r := take(t, inject.Injection{
		Kind:  inject.Full,
		At:    2,
		Errno: unix.ENOSPC,
	})
	var without []int
	for i, line := range strings.Split(r.Stdout, "\n") {
		if strings.HasSuffix(line, "no space left on device") {
			without = append(without, i+1)
		}
	}

	want := []int{3, 4, 14}
	check.That(t, slices.Equal(without, want) && r.Hit != nil && r.Hit.Name == "write", "no room for steps %v, not %v (hit %v): %s", without, want, r.Hit, r.Stdout)
}
