// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// opened is a packager that has unpacked a package already.
type opened struct{ packages.Gatherer }

func (opened) Open(context.Context, host.Host, string, string) ([]byte, error) {
	return []byte("Version: 580.95.05-1\n"), nil
}

// broken is a machine on which one name cannot be looked at.
type broken struct {
	host.Host
	name string
}

func (b broken) ReadDir(name string) ([]string, error) {
	if name == b.name {
		return nil, syscall.EIO
	}
	return b.Host.ReadDir(name)
}

func (b broken) Stat(name string) (host.Info, error) {
	if name == b.name {
		return host.Info{}, syscall.EIO
	}
	return b.Host.Stat(name)
}

// TestSourceOf: if gpuadm cannot look at a source for DKMS, it does not say that the package lacks it.
func TestSourceOf(t *testing.T) {
	const (
		root  = "/m/.gpuadm/source/usr/src"
		dkms  = root + "/nvidia-580.95.05"
		file  = "nvidia-kernel-open-dkms_580.95.05-1_amd64.deb"
		named = "nvidia-kernel-open-dkms"
	)
	archive := "-- " + dkms[1:] + "/dkms.conf --\n-- " + root[1:] + "/other-1.0/dkms.conf --\n"
	n := must.Get(simhost.New([]byte(archive)))(t)
	g := packages.Gathering{Work: "/m/.gpuadm", Into: "/m"}

	for name, want := range map[string]error{
		"":                  nil,
		root:                syscall.EIO,
		dkms + "/dkms.conf": syscall.EIO,
	} {
		source, err := packages.SourceOf(t.Context(), broken{n, name}, opened{}, g, []string{file}, named)
		check.That(t, errors.Is(err, want), "%q: %v", name, err)
		check.That(t, want != nil || source.Folder == dkms, "%q", source.Folder)
	}
}
