// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Command gpuadm turns a machine with NVIDIA GPUs into a Kubernetes node, and keeps it one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
)

func main() {
	// Go ends a program that writes to a closed stdout or stderr: `gpuadm apply | head` must not leave a node half done.
	signal.Ignore(syscall.SIGPIPE)
	// crypto/x509 obeys these; what a caller exports must not decide whom a root process trusts.
	os.Unsetenv("SSL_CERT_FILE")
	os.Unsetenv("SSL_CERT_DIR")
	os.Exit(run(context.Background(), system(), os.Args[1:]))
}

// system is the process's own environment.
func system() env {
	return env{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		getenv:   os.Getenv,
		root:     os.Geteuid() == 0,
		open:     local.Open,
		image:    local.Image,
		read:     os.ReadFile,
		stat:     os.Stat,
		public:   public,
		confined: commands.Confined,

		restartSelf: commands.Reexec,
	}
}
