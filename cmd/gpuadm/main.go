// SPDX-License-Identifier: Apache-2.0

// Command gpuadm turns a machine with NVIDIA GPUs into a Kubernetes node, and keeps it one.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
)

func main() {
	// Go ends a program that writes to a closed stdout or stderr: `gpuadm apply | head` must not
	// leave a node half done.
	signal.Ignore(syscall.SIGPIPE)

	// crypto/x509 reads these variables; the caller's environment must not decide which CAs a root
	// process trusts.
	os.Unsetenv("SSL_CERT_FILE")
	os.Unsetenv("SSL_CERT_DIR")

	// Go wakes threads on all processors. A node has up to 200, and an apply has work for a few:
	// docs/figures.md has what that costs.
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 4))

	os.Exit(run(context.Background(), system(), os.Args[1:]))
}

// system is the process's own environment.
func system() env {
	return env{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		getenv:   os.Getenv,
		typedAs:  ownSelf(),
		root:     os.Geteuid() == 0,
		open:     local.OpenFollowed,
		image:    local.Image,
		read:     readFile,
		stat:     os.Stat,
		public:   readable,
		unit:     ownUnit,
		confined: commands.Confined,

		impatient: true,

		readOnlyMount: commands.ReadOnlyMount,

		restartSelf: commands.Reexec,
	}
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	out := &stdout{Writer: e.stdout}
	e.stdout = out
	e.args = args
	e.ended = &ending{}
	root := newRoot(e)
	root.SetArgs(args)

	e.stdout = root.OutOrStdout()
	e.stderr = root.ErrOrStderr()

	counts, err := e.habitual(root, args)
	if err != nil {
		root.FParseErrWhitelist.UnknownFlags = true
		_ = root.ParseFlags(counts) // -o json may be among them
		return report(e, root, err)
	}

	cmd, err := root.ExecuteContextC(ctx)
	code := report(e, cmd, out.or(err))
	if code == 0 && out.err != nil { // the answer was the report itself
		return report(e, cmd, out.or(nil))
	}
	return code
}
