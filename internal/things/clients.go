// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// GPUClients names the processes that hold a GPU: those with a device node of NVIDIA's open. It reads /proc, since
// NVML knows only clients with a CUDA context, and the kernel module is kept by any open file.
func GPUClients(ctx context.Context, v host.View) ([]string, error) {
	holders, err := GPUHolders(ctx, v)
	var clients []string
	for _, h := range holders {
		if !h.Daemon() { // they only serve others, and are stopped and started with what they hold
			clients = append(clients, h.String())
		}
	}
	return clients, err
}

func gpuFiles(v host.View, pid string) ([]string, error) {
	dir := path.Join("/proc", pid, "fd")
	fds, err := v.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // the process has ended
	case err != nil:
		return nil, err
	}
	var held []string
	for _, fd := range fds {
		to, err := v.Readlink(path.Join(dir, fd))
		if err == nil && strings.HasPrefix(to, "/dev/nvidia") && !strings.Contains(strings.Join(held, " "), to) {
			held = append(held, to)
		}
	}
	return held, nil
}
