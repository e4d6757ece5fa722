// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A step is one system call of the program that the tests of the tracer trace: this test program,
// started again.
type step struct {
	call, what string
	do         func(*calls) error
}

// calls is the folder the steps work in, and the file that most of them are about.
type calls struct {
	dir  string
	file *os.File
}

func (c *calls) path(name string) string { return filepath.Join(c.dir, name) }

func steps() []step {
	return []step{
		{"mkdirat", "folder", func(c *calls) error { return os.Mkdir(c.path("folder"), 0o700) }},
		{"openat", "a", func(c *calls) (err error) { c.file, err = os.Create(c.path("a")); return err }},
		{"write", "a", func(c *calls) error { _, err := c.file.WriteString("twelve bytes"); return err }},
		{"pwrite64", "a", func(c *calls) error { _, err := c.file.WriteAt([]byte("TWELVE"), 0); return err }},
		{"fchmod", "a", func(c *calls) error { return c.file.Chmod(0o600) }},
		{"fchown", "a", func(c *calls) error { return c.file.Chown(os.Getuid(), os.Getgid()) }},
		{"fsetxattr", "a", func(c *calls) error {
			return unix.Fsetxattr(int(c.file.Fd()), "user.x", []byte("y"), 0)
		}},
		{"fremovexattr", "a", func(c *calls) error { return unix.Fremovexattr(int(c.file.Fd()), "user.x") }},
		{"fsync", "a", func(c *calls) error { return c.file.Sync() }},
		{"fdatasync", "a", func(c *calls) error { return unix.Fdatasync(int(c.file.Fd())) }},
		{"ftruncate", "a", func(c *calls) error { return c.file.Truncate(6) }},
		{"fchmodat", "a", func(c *calls) error { return os.Chmod(c.path("a"), 0o640) }},
		{"renameat", "a → b", func(c *calls) error { return os.Rename(c.path("a"), c.path("b")) }},
		{"symlinkat", "link → b", func(c *calls) error { return os.Symlink("b", c.path("link")) }},
		{"linkat", "b → hard", func(c *calls) error { return os.Link(c.path("b"), c.path("hard")) }},
		{"truncate", "b", func(c *calls) error { return os.Truncate(c.path("b"), 3) }},
		{"utimensat", "b", func(c *calls) error {
			return os.Chtimes(c.path("b"), time.Unix(1, 0), time.Unix(1, 0))
		}},
		{"unlinkat", "hard", func(c *calls) error { return unix.Unlinkat(unix.AT_FDCWD, c.path("hard"), 0) }},
		{"unlinkat", "folder", func(c *calls) error {
			return unix.Unlinkat(unix.AT_FDCWD, c.path("folder"), unix.AT_REMOVEDIR)
		}},
		{"openat", "child", func(c *calls) error { // a child's calls count as well
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childFile+"="+c.path("child"))
			return cmd.Run()
		}},
	}
}

// What the environment variables that start this program again name: the folder for the steps, the
// file for the child, whether to wait for a SIGTERM at the end, and whether to go on after an
// error.
const (
	stepsFolder = "INJECT_STEPS"
	childFile   = "INJECT_CHILD"
	waits       = "INJECT_WAITS"
	goesOn      = "INJECT_GOES_ON"
)

// asProgram is this program as the tests start it again; false if it is the test itself.
func asProgram() (err error, asked bool) {
	if name := os.Getenv(childFile); name != "" {
		_, err := os.Create(name)
		return err, true
	}
	dir := os.Getenv(stepsFolder)
	if dir == "" {
		return nil, false
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	c := &calls{dir: dir}
	for i, s := range steps() {
		err := onNewThread(func() error { return s.do(c) })
		if os.Getenv(goesOn) != "" {
			fmt.Println("step", i+1, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err), true
		}
		fmt.Println("step", i+1)
	}

	if os.Getenv(waits) != "" {
		fmt.Println(<-term)
	}
	// Neither of these changes a file.
	if _, err := os.ReadFile(c.path("b")); err != nil {
		return err, true
	}
	return os.WriteFile(os.DevNull, []byte("x"), 0), true
}

// onNewThread shows that the count goes over all threads.
func onNewThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with this goroutine
		done <- do()
	}()
	return <-done
}
