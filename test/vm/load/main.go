// SPDX-License-Identifier: Apache-2.0

// Command load has gpuadm load the module nvidia, and says what gpuadm says. In a machine without
// systemd, where gpuadm itself would not get that far.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func main() {
	if err := load(context.Background()); err != nil {
		fmt.Println(err)
		if t := (*trouble.Error)(nil); errors.As(err, &t) {
			fmt.Printf("because: %s\ntry: %s\n", strings.Join(t.Because, "\nbecause: "), strings.Join(t.Try, "\ntry: "))
		}
		os.Exit(1)
	}
}

// bare is the machine: no daemons are installed, and there is no systemd that could say so.
type bare struct{ host.Host }

func (bare) Unit(context.Context, string) (host.Unit, error) {
	return host.Unit{Load: "not-found"}, nil
}

func load(ctx context.Context) error {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return fmt.Errorf("cannot read the kernel's name: %w", err)
	}
	live, err := local.Open("/")
	if err != nil {
		return err
	}
	h := bare{live}
	m := kmod.Module(strings.TrimSpace(string(kernel)), []string{modules.ModprobeFile, modules.LoadFile}, modules.OnDisk, false, "")
	state, err := m.Look(ctx, h)
	if err != nil {
		return err
	}
	fmt.Println("found:", state)
	return m.Make(ctx, h, m.Thing.(converge.Follower).Current(state))
}
