// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestSameParameter(t *testing.T) {
	for _, c := range []struct {
		told, is string
		same     bool
	}{
		{"1", "1", true},
		{"0x10", "16", true},
		{"-1", "4294967295", true},
		{"0", "1", false},
		{"4294967295", "-1", true},
		{"a=1", "a=1", true},
		{"a", "b", false},
		{"", "", true},
		{"1", "one", false},
	} {
		check.That(t, sameParameter(c.told, c.is) == c.same, "%q and %q", c.told, c.is)
	}

	check.List(t, modprobeWords(`options nvidia NVreg_A="x y; z" B=`), []string{"options", "nvidia", "NVreg_A=x y; z", "B="}, "got")
}

func TestFirstError(t *testing.T) {
	for log, want := range map[string]string{
		"cc\nx.c:1: error: a\nx.c:2: error: b\nmake: *** [x] Error 2\n":                               "x.c:1: error: a",
		"gcc: fatal error: Killed signal terminated program cc1\n":                                    "the compiler was killed, most likely for want of memory: gcc: fatal error: Killed signal terminated program cc1",
		"ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'x'\n":                "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'x'",
		"make: *** No rule to make target 'x'.  Stop.\n":                                              "make: *** No rule to make target 'x'.  Stop.",
		"/bin/sh: 1: gcc-12: not found\nmake[1]: *** [x] Error 127\nx.c:1: error: a\n":                "/bin/sh: 1: gcc-12: not found",
		"make -C /lib\nbash: line 1: g++: command not found\nx.c:1: fatal error: y.h: No such file\n": "bash: line 1: g++: command not found",
		"all went well\n": "",
	} {
		check.Equal(t, FirstError(log), want, "got")
	}
}

// FuzzModuleTexts: states come back as they were said, and no text of the kernel's or of a log is
// too much.
func FuzzModuleTexts(f *testing.F) {
	f.Add("580.95.05 open", "570.1 open", "options nvidia A=\"b c\"")
	f.Add("nothing", "nouveau", "")
	f.Fuzz(func(t *testing.T, a, b, text string) {
		s := moduleState{loaded: a, disk: b}.State()
		if (s == moduleSettled) != (a == b) && a != "nothing" && b != "nothing" && !strings.Contains(a+b, moduleSettled) {
			t.Errorf("%q on disk %q is %q", a, b, s)
		}
		if s := (moduleState{loaded: a, disk: a, lacks: strings.Fields(b)}).State(); (s == moduleSettled) != (len(strings.Fields(b)) == 0) && a != moduleSettled {
			t.Errorf("%q without %q is %q", a, b, s)
		}
		modprobeWords(text)
		parameters(text)
		FirstError(text)
		sameParameter(a, b)
	})
}

func TestFabric(t *testing.T) {
	gpu := func(state, status string) host.GPU {
		return host.GPU{
			Address: "0000:17:00.0",
			Fabric:  host.Fabric{State: state, Status: status},
		}
	}

	f := fabric{time.Second}
	for _, c := range []struct {
		gpus []host.GPU
		want converge.State
		says string
	}{
		{nil, "", ""},
		{[]host.GPU{gpu("", "")}, "", ""},
		{[]host.GPU{gpu("completed", ""), gpu("completed", "")}, "completed", ""},
		{[]host.GPU{gpu("completed", ""), gpu("in-progress", "")}, "waiting", "GPU 0000:17:00.0: its registration is in progress"},
		{[]host.GPU{gpu("completed", "NVML_ERROR_IN_USE"), gpu("not-started", "")}, "failed", "has failed: NVML_ERROR_IN_USE"},
	} {
		state, says := registered(host.Driver{GPUs: c.gpus})
		check.That(t, state == c.want && strings.Contains(strings.Join(says, "\n"), c.says), "%+v: %q, %q", c.gpus, state, says)
		s := f.Current(state)
		check.That(t, (s == "" || s == "completed") && f.Current(s) == s, "%q settles as %q", state, s)
	}
}
