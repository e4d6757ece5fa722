// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMirrorFiles: of a package that a distribution has for two architectures, a mirror has the
// file that dnf fetches. The kernel's headers are wanted by their whole name.
func TestMirrorFiles(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	native := nativeRPM()
	text := "glibc-devel\t0\t2.34\t168.el9\ti686\tbaseos\t20\n" +
		"glibc-devel\t0\t2.34\t168.el9\t" + native + "\tbaseos\t30\n" +
		"kernel-devel\t0\t5.14.0\t427.el9\t" + native + "\tbaseos\t40\n" +
		"kmod-nvidia-open-dkms\t3\t580.65.06\t1.el9\tnoarch\tcuda\t50\n" +
		"libnvidia-ml\t3\t580.65.06\t1.el9\ti686\tcuda\t60\n" +
		"libnvidia-ml\t3\t580.65.06\t1.el9\t" + native + "\tcuda\t70\n"
	n.Install("dnf", simhost.Program{
		Looks: func([]string) bool { return true },
		Run:   func(*files.Files, []string) ([]byte, error) { return []byte(text), nil },
	})

	found, err := dnf{}.files(t.Context(), n, []string{
		"glibc-devel-0:2.34-168.el9",
		"kernel-devel-5.14.0-427.el9." + native,
		"kmod-nvidia-open-dkms-3:580.65.06-1.el9",
		"libnvidia-ml-3:580.65.06-1.el9.i686",
	})
	must.OK(t, err)
	check.List(t, slices.Sorted(maps.Keys(found)), []string{
		"glibc-devel-2.34-168.el9." + native + ".rpm",
		"kernel-devel-5.14.0-427.el9." + native + ".rpm",
		"kmod-nvidia-open-dkms-580.65.06-1.el9.noarch.rpm",
		"libnvidia-ml-580.65.06-1.el9.i686.rpm",
	}, "files:")
}

// conflicting is a machine with one package, old, which no repository has and which conflicts with
// the package new.
type conflicting struct {
	*simhost.Node
	fetched []string // what dnf was told to fetch
}

func (c *conflicting) Do(_ context.Context, argv ...string) ([]byte, error) {
	if at := slices.Index(argv, "--downloaddir"); at >= 0 {
		c.fetched = argv[at+2:]
	}
	return nil, nil
}

func (c *conflicting) Ask(_ context.Context, argv ...string) ([]byte, error) {
	asked := strings.Join(argv, " ")
	const plan = "\n Package  Architecture  Version  Repository  Size\nInstalling:\n new  noarch  2-1  vendor  10 k\n" +
		"Removing dependent packages:\n old  noarch  1-1  @System  9 k\n\nTransaction Summary\n"
	switch {
	case strings.Contains(asked, "--eval"):
		return []byte("/var/lib/rpm\n"), nil
	case strings.Contains(asked, "-qa"):
		return []byte("old\t0\t1\t1\tnoarch\t1\t1\t(none)\n"), nil
	case strings.Contains(asked, "--assumeno"):
		return []byte(plan), &host.CommandError{Argv: argv, Code: 1, Stderr: "Operation aborted."}
	case strings.Contains(asked, "%{downloadsize}"):
		return []byte("new\t0\t2\t1\tnoarch\tvendor\t10\n"), nil
	case strings.Contains(asked, "%{repoid}"):
		return []byte("new\t0\t2\t1\tnoarch\tvendor\n"), nil
	}
	return []byte("new\n"), nil
}

// TestMirrorOfAConflict: a mirror fetches what is new. An installed package that gives way to it
// has no file.
func TestMirrorOfAConflict(t *testing.T) {
	m := &conflicting{Node: must.Get(simhost.New([]byte("-- usr/bin/dnf --\n-- usr/bin/createrepo_c --\n")))(t)}
	g := packages.Gathering{
		Work:   "/m/.work",
		Into:   "/m",
		Before: "/none",
		Say:    func(int, int64) {},
	}
	g.Request.Changes = []converge.Change{{
		Ref:   converge.Ref{Kind: "package", Name: "new"},
		After: "new=*",
	}}

	names, err := dnf{}.Gather(t.Context(), m, g)
	must.That(t, err == nil, "%s", wordsOf(err))
	check.List(t, names, []string{"new-2-1.noarch.rpm"}, "files:")
	check.List(t, m.fetched, []string{"new-0:2-1"}, "dnf fetches")
}
