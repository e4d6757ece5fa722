// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"errors"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestIsolateIsPrivate: a file of another tool's repository may hold a password, which only root may
// read. The folder lies below that of the mirror, which all may read.
func TestIsolateIsPrivate(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- etc/yum.repos.d/vendor.repo mode=600 --
[vendor]
baseurl=https://vendor.example
username=node
password=secret
-- srv/mirror.new/.gpuadm/root/repos/.keep --
`)))(t)
	a := New(nil).(dnf)
	a.root = "/srv/mirror.new/.gpuadm/root"
	repos, _, err := a.isolate(t.Context(), down{n}, packages.Gathering{Work: "/srv/mirror.new/.gpuadm"}, "/var/lib/rpm")
	must.OK(t, err)
	check.That(t, len(repos) == 1, "%v", repos)

	info := must.Get(n.Stat(a.root + ownRepos + "/vendor.repo"))(t)
	check.That(t, info.Mode.Perm() == 0o600, "the copy has mode %o", info.Mode.Perm())
}

// unlisted is a machine with a folder that cannot be listed.
type unlisted struct {
	down
	folder string
}

func (u unlisted) ReadDir(name string) ([]string, error) {
	if name == u.folder {
		return nil, &host.FileError{Verb: "list", Path: name, Cause: syscall.EIO}
	}
	return u.down.ReadDir(name)
}

// TestIsolateSeesAll: a mirror is not made from a part of the machine's packages and repositories. A
// folder that does not exist has none.
func TestIsolateSeesAll(t *testing.T) {
	const database = "/usr/lib/sysimage/rpm"
	for _, folder := range []string{database, "/etc/yum.repos.d", "/etc/dnf/modules.d", ""} {
		n := must.Get(simhost.New([]byte("-- w/root/repos/.keep --\n")))(t)
		a := New(nil).(dnf)
		a.root = "/w/root"
		_, _, err := a.isolate(t.Context(), unlisted{down{n}, folder}, packages.Gathering{Work: "/w"}, database)
		check.That(t, errors.Is(err, syscall.EIO) == (folder != ""), "%s: %v", folder, err)
	}
}
