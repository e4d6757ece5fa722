// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// apt is asked which signed modules are available where a target kernel has none of the branch; a machine of another
// distribution, and lists that know of none at all, say nothing.
func TestSigned(t *testing.T) {
	const k, old = "6.8.0-45-generic", "6.8.0-41-generic"
	const name = "linux-modules-nvidia-580-server-open-"
	apt := func(out string) string {
		return "[[command]]\nargv = [\"apt-cache\", \"-o\", \"Dir::Cache::pkgcache=\", \"-o\", \"Dir::Cache::srcpkgcache=\", \"-o\", \"Dir::State::status=/dev/null\", " +
			"\"search\", \"--names-only\", \"^linux-modules-nvidia-\"]\nstdout = \"\"\"\n" + out + "\"\"\"\n"
	}
	all := apt(name + k + " - Linux kernel nvidia modules\n" + name + old + " - x\nlinux-modules-nvidia-580-open-" + k + " - x\n" + name + "generic - x\n")
	for _, x := range []struct {
		name, id, commands string
		want               []string
	}{
		{"asked", "ubuntu", all, []string{"linux-modules-nvidia-580-open-" + k, name + k}},
		{"none for the kernel", "ubuntu", apt(name + old + " - x\n"), []string{}},
		{"no lists", "ubuntu", apt(""), nil},
		{"no apt", "ubuntu", "", nil},
		{"Debian", "debian", all, nil},
	} {
		n, err := simhost.New([]byte("-- sim.toml --\n" + x.commands + "-- etc/os-release --\nID=" + x.id + "\n-- proc/sys/kernel/osrelease --\n" + k + "\n" +
			"-- lib/modules/" + k + "/modules.dep --\n-- lib/modules/" + old + "/modules.dep --\n"))
		must.OK(t, err)
		f, err := facts.Gather(context.Background(), n, facts.Needs{Modules: true, Signed: "580"})
		must.OK(t, err)
		check.That(t, slices.Equal(f.Signed, x.want) && (f.Signed == nil) == (x.want == nil), "%s: %q (%t), want %q", x.name, strings.Join(f.Signed, " "), f.Signed == nil, x.want)
		if f, err = facts.Gather(context.Background(), n, facts.Needs{Modules: true}); err != nil || f.Signed != nil {
			t.Errorf("%s: not asked, and says %v, %v", x.name, f.Signed, err)
		}
	}
}
