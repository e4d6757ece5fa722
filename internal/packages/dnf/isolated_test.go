// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"testing"

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
