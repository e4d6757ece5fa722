// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"fmt"
	"strings"
)

const (
	oldKey = "F22CC24F7F742054127646D9354FB98A5B4AF876"
	newKey = "721C5B55B89856668652F2E2F840835E39C2E4F4"
)

// A repository is what [driver.repo] or [toolkit.repo] says.
func repository(section, host, key string) string {
	file, fingerprint := "/srv/ed25519.asc", oldKey
	if key == "new" {
		file, fingerprint = "/srv/rsa2048.gpg", newKey
	}
	return fmt.Sprintf("[%s.repo]\nurl = \"https://%s\"\nkey = %q\nfingerprint = %q\n", section, host, file, fingerprint)
}

func driver(version string, more ...string) string {
	return "[driver]\nversion = \"" + version + "\"\n" + strings.Join(more, "\n") + "\n"
}

var (
	vendor  = repository("driver", "nvidia.example/ubuntu2404", "old")
	rotated = repository("driver", "nvidia.example/ubuntu2404", "new")
	mirror  = repository("driver", "mirror.example/ubuntu2404", "old")
	toolkit = "[toolkit]\nversion = \"1.18.0\"\n" + repository("toolkit", "toolkit.example/deb", "old")
	newer   = "[toolkit]\nversion = \"1.18.1\"\n" + repository("toolkit", "toolkit.example/deb", "old")
)

const (
	handler    = "[runtime]\nengine = \"containerd\"\n"
	asDefault  = "[runtime]\nengine = \"containerd\"\nset_as_default = true\n"
	other      = "[runtime]\nengine = \"containerd\"\nhandler = \"nvidia-two\"\ncdi = false\n"
	docker     = "[runtime]\nengine = \"docker\"\nset_as_default = true\n"
	quarters   = "[[mig.gpu]]\nlayout = { \"1g.6gb\" = 4 }\n"
	halves     = "[[mig.gpu]]\nlayout = { \"2g.12gb\" = 2 }\n"
	mixed      = "[[mig.gpu]]\ndevices = [0]\nlayout = { \"2g.12gb\" = 1, \"1g.6gb\" = 2 }\n[[mig.gpu]]\ndevices = [1]\nenabled = false\n"
	labels     = "[node]\nstartup_taint = \"none\"\nlabels = { \"example.com/pool\" = \"a30\" }\n"
	tainted    = "[node]\nstartup_taint = \"none\"\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	withoutRun = "persistenced = false"
)

// Specs are the table: what a machine is asked for, by name.
var Specs = []struct{ Name, Text string }{
	{"nothing", ""},
	{"580.95", driver("580.95.05") + vendor},
	{"580.105", driver("580.105.08") + vendor},
	{"580", driver("580") + vendor},
	{"580 proprietary", driver("580.95.05", `modules = "proprietary"`) + vendor},
	{"580 without persistenced", driver("580.95.05", withoutRun) + vendor},
	{"580 with settings", driver("580.95.05", `packages = ["nvidia-settings"]`) + vendor},
	{"580 with CUDA", driver("580.95.05", `packages = ["cuda-toolkit-12-8"]`) + vendor},
	{"580 with CUDA and toolkit", driver("580.95.05", `packages = ["cuda-toolkit-12-8"]`) + vendor + toolkit},
	{"580 peermem", driver("580.95.05", "peermem = true") + vendor},
	{"580 rotated key", driver("580.95.05") + rotated},
	{"580.105 rotated key", driver("580.105.08") + rotated},
	{"570", driver("570.148.08") + vendor},
	{"575", driver("575.57.08") + vendor},
	{"590", driver("590.48.01") + vendor},
	{"595", driver("595.71.05") + vendor},
	{"610", driver("610.43.02") + vendor},
	{"580 mirror", driver("580.159.04") + mirror},
	{"580 mirror open", driver("580") + mirror},
	{"570 mirror", driver("570.148.08") + mirror},
	{"570 shared modules", driver("570.148.08", `build = "shared"`) + mirror},
	{"580 shared modules", driver("580.159.04", `build = "shared"`) + mirror},
	{"580 distribution", driver("580", `source = "distro"`)},
	{"570 distribution", driver("570", `source = "distro"`)},
	{"595 distribution", driver("595", `source = "distro"`)},
	{"toolkit", toolkit},
	{"toolkit newer", newer},
	{"handler", toolkit + handler},
	{"default", toolkit + asDefault},
	{"default newer", newer + asDefault},
	{"other handler", toolkit + other},
	{"docker", toolkit + docker},
	{"driver and toolkit", driver("580.95.05") + vendor + toolkit},
	{"driver, toolkit, default", driver("580.95.05") + vendor + toolkit + asDefault},
	{"newer driver, toolkit, default", driver("580.105.08") + vendor + newer + asDefault},
	{"mirror, toolkit, handler", driver("580.159.04") + mirror + toolkit + handler},
	{"distribution, toolkit, docker", driver("580", `source = "distro"`) + toolkit + docker},
	{"quarters", driver("580.95.05") + vendor + quarters},
	{"halves", driver("580.95.05") + vendor + halves},
	{"mixed, newer", driver("580.105.08") + vendor + mixed},
	{"quarters, default", driver("580.95.05") + vendor + toolkit + asDefault + quarters},
	{"labels", toolkit + handler + labels},
	{"taints", toolkit + handler + tainted},
	{"all", driver("580.95.05") + vendor + toolkit + asDefault + halves + labels},
}

// has says whether a spec has a section.
func has(text, section string) bool {
	return strings.Contains("\n"+text, "\n["+section) || strings.Contains(text, "[["+section)
}
