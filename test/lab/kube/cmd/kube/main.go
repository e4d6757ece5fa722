// SPDX-License-Identifier: Apache-2.0

// Command kube builds the programs of a Kubernetes control plane, and runs one for people.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/lab/kube"
)

const usage = `usage: go run ./test/lab/kube/cmd/kube COMMAND

  build   build what is missing: minutes, the first time
  up      start a control plane in a network of its own, until Ctrl-C
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := do(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "build":
		return kube.Build(ctx, func(line string) { fmt.Println(line) })
	case len(args) == 1 && args[0] == "up":
		return up(ctx)
	}

	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
	return nil
}

// up runs a control plane, and says how to use it.
func up(ctx context.Context) error {
	began := time.Now()
	c, err := kube.Start(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := c.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "kube:", err)
		}
	}()
	token, err := c.BootstrapToken(ctx, 24*time.Hour)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir(), "admin.conf")
	text, err := c.AdminConfig(c.Local)
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("cannot write a kubeconfig: %w", err)
	}
	fmt.Printf(`A control plane was there after %.1f s. Ctrl-C ends it.

  from here        kubectl --kubeconfig %s get nodes
  in its network   %s -- COMMAND     (there it is %s)
  to join          token %s, CA %s, pin %s
  logs             %s/*.log
`, time.Since(began).Seconds(), config, c.Enter(), kube.Server, token, filepath.Join(c.Dir(), "ca.crt"), c.Pin(), c.Dir())
	<-ctx.Done()
	return nil
}
