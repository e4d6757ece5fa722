// SPDX-License-Identifier: Apache-2.0

// Command daemon replaces a program or a daemon of NVIDIA's packages. Its last line, put behind the
// program by package repos, is what it says to --version; without arguments it runs until a signal
// ends it. nvidia-modprobe ends at once: it has made device files, or found that there is nothing
// to make (https://github.com/NVIDIA/nvidia-modprobe, nvidia-modprobe.c). nvidia-ctk is not a daemon, and
// fails.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	switch filepath.Base(os.Args[0]) {
	case "nvidia-modprobe":
		return
	case "nvidia-ctk":
		fmt.Fprintln(os.Stderr, "this stand-in of nvidia-ctk says its version, and nothing else: Recipe.CTK takes a real one")
		os.Exit(1)
	}

	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
