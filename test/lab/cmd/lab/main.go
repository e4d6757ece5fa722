// SPDX-License-Identifier: Apache-2.0

// Command lab sets up the lab's disposable hosts and lets people use one by hand.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

const usage = `usage: go run ./test/lab/cmd/lab COMMAND

  setup                install what the lab needs, build the root filesystems; once
  up DIST[+CONTAINERD] boot a host that stays: bookworm, trixie, trixie+2.4, rhelish
  list                 name the hosts that are there
  shell HOST           a shell in it
  down HOST            end it, and drop all it wrote
  clean                end all hosts that no test uses, and remove the caches
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := do(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, args []string) error {
	say := func(line string) { fmt.Println(line) }
	switch {
	case len(args) == 1 && args[0] == "setup":
		return setup(ctx, say)
	case len(args) == 1 && args[0] == "list":
		return list()
	case len(args) == 1 && args[0] == "clean":
		return lab.Clean(say)
	case len(args) == 2 && args[0] == "up":
		return up(ctx, args[1])
	case len(args) == 2 && args[0] == "shell":
		m, err := lab.Open(args[1])
		if err != nil {
			return err
		}
		return m.Shell()
	case len(args) == 2 && args[0] == "down":
		m, err := lab.Open(args[1])
		if err != nil {
			return err
		}
		return m.Down()
	}

	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
	return nil
}

// setup makes all that tests need, the package repositories as well: a test would make them, and
// take longer for it.
func setup(ctx context.Context, say func(string)) error {
	if err := lab.Setup(ctx, say); err != nil {
		return err
	}

	for _, distro := range []string{"debian12", "rhel9"} { // of the others each test makes what it needs
		began := time.Now()
		if _, err := repos.Build(ctx, distro, repos.Recipe{}); err != nil {
			return fmt.Errorf("cannot set up the lab: repositories for %s: %w", distro, err)
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		say(fmt.Sprintf("%-26s there after %s", "repositories for "+distro, took))
	}

	return nil
}

func up(ctx context.Context, what string) error {
	dist, containerd, _ := strings.Cut(what, "+")
	m, err := lab.Start(ctx, lab.Options{
		Dist:       dist,
		Containerd: containerd,
		GPUs:       8,
	})
	if err != nil {
		return err
	}
	if err := m.Keep(); err != nil {
		return err
	}
	fmt.Printf("%s is up; to enter it: go run ./test/lab/cmd/lab shell %[1]s\n", m.Name)
	return nil
}

func list() error {
	hosts, err := lab.Hosts()
	for _, name := range hosts {
		fmt.Println(name)
	}
	return err
}
