// SPDX-License-Identifier: Apache-2.0

package apt

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

// made is a machine whose programs have run.
type made struct{ *simhost.Node }

func (made) Do(context.Context, ...string) ([]byte, error) { return nil, nil }

// TestIsolateIsPrivate: another tool's source may hold a password, which only root may read. The
// folder lies below that of the mirror, which all may read.
func TestIsolateIsPrivate(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- etc/apt/sources.list.d/vendor.list mode=600 --
deb https://node:secret@vendor.example stable main
-- w/sources/.keep --
-- w/pins/.keep --
`)))(t)
	_, err := isolate(t.Context(), made{n}, packages.Gathering{Work: "/w"})
	must.OK(t, err)

	info := must.Get(n.Stat("/w/sources/vendor.list"))(t)
	check.That(t, info.Mode.Perm() == 0o600, "the copy has mode %o", info.Mode.Perm())
}

// unlisted is a machine with a folder that cannot be listed.
type unlisted struct {
	made
	folder string
}

func (u unlisted) ReadDir(name string) ([]string, error) {
	if name == u.folder {
		return nil, &host.FileError{Verb: "list", Path: name, Cause: syscall.EIO}
	}
	return u.made.ReadDir(name)
}

// TestIsolateSeesAll: a mirror is not made from a part of the machine's sources. A folder that does
// not exist has none.
func TestIsolateSeesAll(t *testing.T) {
	for _, folder := range []string{"/etc/apt/sources.list.d", ""} {
		n := must.Get(simhost.New([]byte("-- w/sources/.keep --\n-- w/pins/.keep --\n")))(t)
		_, err := isolate(t.Context(), unlisted{made{n}, folder}, packages.Gathering{Work: "/w"})
		check.That(t, errors.Is(err, syscall.EIO) == (folder != ""), "%s: %v", folder, err)
	}
}
