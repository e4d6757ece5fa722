// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestLessonKeepsItsFlavour: that the proprietary modules of a driver do not build says nothing of the
// open ones, and the reverse. Where the sources do not say what they are, it is said of both.
func TestLessonKeepsItsFlavour(t *testing.T) {
	const version, kernel = "550.163.01", "6.17.0-19-generic"
	for _, x := range []struct {
		name, source      string
		open, proprietary bool
	}{
		{"proprietary", "-- usr/src/nvidia-550.163.01/nvidia/nv.c --\nMODULE_LICENSE(\"NVIDIA\");\n", false, true},
		{"open", "-- usr/src/nvidia-550.163.01/nvidia.c --\nMODULE_LICENSE(\"Dual MIT/GPL\");\n", true, false},
		{"unknown", "-- usr/src/nvidia-550.163.01/Makefile --\nall:\n", true, true},
	} {
		n := must.Get(simhost.New([]byte(x.source)))(t)
		var taught converge.Taught
		err := BuildLesson(n, "nvidia", version, kernel, "nv.c:3:9: error: no such thing", errors.New("exit status 2"))
		must.That(t, errors.As(err, &taught), "%s: a failed build teaches nothing", x.name)
		check.Equal(t, Concerns(n, taught.Lesson, version, kernel, "open"), x.open, "%s: said of open modules:", x.name)
		check.Equal(t, Concerns(n, taught.Lesson, version, kernel, "proprietary"), x.proprietary, "%s: said of proprietary modules:", x.name)
		check.That(t, !Concerns(n, taught.Lesson, "580.95.05", kernel, x.name), "%s: said of another driver", x.name)
	}
}
