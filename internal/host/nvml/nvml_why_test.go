// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestNoDriver: each reason why no driver answers has its own words and a way out.
func TestNoDriver(t *testing.T) {
	const module = "-- sys/module/nvidia/version --\n580.95.05\n"
	maps := func(line string) string {
		return "-- proc/self/maps --\n7f00-7f01 r-xp 00000000 fe:01 12  " + line + "\n"
	}
	const lib = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so."
	for _, c := range []struct{ name, files, code, why, try string }{
		{"nothing", "", "LIBRARY_NOT_FOUND", "neither", "install the NVIDIA driver"},
		{
			"no library", module, "LIBRARY_NOT_FOUND", "nvidia 580.95.05 is loaded, but the library",
			"libraries of driver 580.95.05",
		},
		{"no module", "", "DRIVER_NOT_LOADED", "is not loaded", "modprobe nvidia"},
		{"no device file", module, "DRIVER_NOT_LOADED", "/dev/nvidiactl", "nvidia-modprobe -c 255 makes"},
		{"not root", module, "NO_PERMISSION", "permission", "root"},
		{"other", module, "IRQ_ISSUE", "IRQ_ISSUE", "dmesg"},
		{
			"updated without a reboot", module + maps(lib+"580.105.08"), "LIB_RM_VERSION_MISMATCH",
			"driver 580.95.05 and the library of 580.105.08",
			"reboot",
		},
		{
			"replaced under this process", module + maps(lib+"570.1 (deleted)"), "LIB_RM_VERSION_MISMATCH", "from 570.1 to 580.95.05 while gpuadm ran",
			"run gpuadm again",
		},
		{
			"another one beside it",
			module + maps(lib+"570.1") + "-- " + lib[1:] + "580.95.05 --\n",
			"LIB_RM_VERSION_MISMATCH", "from 570.1 to 580.95.05",
			"run gpuadm again",
		},
		{
			"nothing is known", "", "LIB_RM_VERSION_MISMATCH",
			"driver an unknown version and the library of an unknown version",
			"reboot",
		},
		{
			"a strange module",
			"-- sys/module/nvidia/version --\n\x1b[31m1\n",
			"DRIVER_NOT_LOADED", "nvidia [31m1 is loaded",
			"nvidia-modprobe",
		},
	} {
		n := must.Get(simhost.New([]byte(c.files)))(t)
		if none := nvml.Because(n.Files, c.code); !strings.Contains(none.Why, c.why) || !strings.Contains(none.Try, c.try) {
			t.Errorf("%s: %q, try %q", c.name, none.Why, none.Try)
		} else if none.Again != (c.try == "run gpuadm again") {
			t.Errorf("%s: again: %t", c.name, none.Again)
		}
	}
}

func TestResetWords(t *testing.T) {
	failed := &host.CommandError{
		Argv:  []string{"nvidia-smi"},
		Code:  255,
		Cause: errors.New("exit status 255"),
	}
	err := nvml.WithOutput(failed, []byte("\nGPU 00000000:17:00.0: In use by another client\n"))
	told := (*host.CommandError)(nil)
	check.That(t, errors.As(err, &told) && told.Stderr == "GPU 00000000:17:00.0: In use by another client" && failed.Stderr == "", "%v", err)
	said := &host.CommandError{Stderr: "why"}
	check.That(t, nvml.WithOutput(said, []byte("x")) == error(said) && nvml.WithOutput(nil, []byte("x")) == nil, "words are replaced")
}

// FuzzPrintable: whatever firmware wrote, it is short, valid and without control characters.
func FuzzPrintable(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3")
	f.Add("\xff\x1b]0;x\a" + strings.Repeat("é", 100))
	f.Fuzz(func(t *testing.T, s string) {
		p := nvml.Printable(s)
		if len(p) > 128 || !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("%q", p)
		}
	})
}
