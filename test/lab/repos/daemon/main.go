// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Command daemon replaces a program or a daemon of NVIDIA's packages. Its last line, put behind the program by
// package repos, is what it says to --version; without arguments it runs until a signal ends it.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	says := self[bytes.LastIndexByte(bytes.TrimRight(self, "\n"), '\n')+1:]
	if slices.Contains(os.Args, "--version") || slices.Contains(os.Args, "-v") {
		_, _ = os.Stdout.Write(says)
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
