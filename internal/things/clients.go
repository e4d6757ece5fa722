// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// GPUClients names the processes that hold a GPU: those with a device node of NVIDIA's open. It reads /proc, since
// NVML knows only clients with a CUDA context, and the kernel module is kept by any open file.
func GPUClients(ctx context.Context, v host.View) ([]string, error) {
	if !v.Live() {
		return nil, nil
	}
	pids, err := v.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var clients []string
	for _, pid := range pids {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		held, err := gpuFiles(v, pid)
		if err != nil {
			return nil, err
		}
		if len(held) > 0 {
			comm, _ := v.ReadFile(path.Join("/proc", pid, "comm")) // gone with its process
			clients = append(clients, fmt.Sprintf("process %s (%s) has %s open", pid, strings.TrimSpace(string(comm)), strings.Join(held, ", ")))
		}
	}
	return clients, ctx.Err()
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
