// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := must.Get(host.Open(dir))(t)
	put(t, dir+"/etc/apt/sources.list.d/cuda.list", "deb [signed-by=/usr/share/keyrings/cuda.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n", 0o644)
	if found := New().Leftovers(h); len(found) > 0 {
		t.Errorf("on a tidy machine: %q", found)
	}
	put(t, dir+"/etc/apt/sources.list.d/nvidia-docker.list", "# old\ndeb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /\n", 0o644)
	put(t, dir+"/etc/apt/sources.list.d/libnvidia-container.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n", 0o644)
	put(t, dir+"/etc/apt/sources.list.d/cuda2.sources", "Types: deb\nURIs: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64\nSuites: /\n", 0o644)
	put(t, dir+"/etc/apt/trusted.gpg", "x", 0o644)
	put(t, dir+"/etc/apt/trusted.gpg.d/nvidia.gpg", "x", 0o644)
	said := strings.Join(New().Leftovers(h), "\n")
	contains(t, said, "nvidia-docker.list: nvidia-docker's repository", "libnvidia-container.list: https://nvidia.github.io/libnvidia-container/stable/deb/", "cuda.list, /etc/apt/sources.list.d/cuda2.sources: each names", "/etc/apt/trusted.gpg:", "trusted.gpg.d/nvidia.gpg")
	if n := len(New().Leftovers(h)); n != 5 {
		t.Errorf("%d leftovers:\n%s", n, said)
	}
}
