// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"maps"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/files"
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
