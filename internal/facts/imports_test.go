// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestImportsThatAreNoFiles: a pattern matches folders, too; a link to /dev/null is a file without a
// byte, and links may lead to nothing or in a circle. None keeps gpuadm from reading the machine.
func TestImportsThatAreNoFiles(t *testing.T) {
	const etc = "/etc/containerd/"
	n := must.Get(simhost.New([]byte("-- dev/null device=1:3 --\n" +
		"-- etc/containerd/config.toml --\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n" +
		"-- etc/containerd/conf.d/10.toml link=/dev/null --\n" +
		"-- etc/containerd/conf.d/20.toml/inside --\n" +
		"-- etc/containerd/conf.d/30.toml link=/opt/missing --\n" +
		"-- etc/containerd/conf.d/40.toml link=50.toml --\n" +
		"-- etc/containerd/conf.d/50.toml link=40.toml --\n")))(t)
	f, err := facts.Gather(t.Context(), n, facts.Needs{})
	must.That(t, err == nil && len(f.Engines) == 1, "%v: %v", f.Engines, err)

	var got []string
	for _, file := range f.Engines[0].Files {
		name := strings.TrimPrefix(file.Path, etc)
		got = append(got, fmt.Sprintf("%s %v %s", name, file.Data != nil, file.Is))
	}

	want := []string{
		"config.toml true ", "conf.d/10.toml true ", "conf.d/20.toml false a folder", "conf.d/30.toml false ",
		"conf.d/40.toml false a link that leads back to itself",
		"conf.d/50.toml false a link that leads back to itself",
	}
	check.List(t, got, want, "files:")
}
