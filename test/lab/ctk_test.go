// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabBesideCTK: where nvidia-ctk writes the handler with gpuadm's keys and values, before or
// after gpuadm and into the same file or another, the next apply has nothing to do, and restarts
// nothing. Undo then takes out what gpuadm wrote, and nvidia-ctk's handler serves on.
func TestLabBesideCTK(t *testing.T) {
	t.Parallel()
	const imports = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	for _, c := range []struct {
		name    string
		options lab.Options
		file    string
		ctk     string // flags of nvidia-ctk
		spec    string // in [runtime]
	}{
		{"1.6, drop-in over gpuadm's root", lab.Options{Dist: "bookworm"}, "version = 2\n", "", ""},
		{"1.7, drop-in over gpuadm's root", lab.Options{Dist: "trixie"}, "version = 2\n", "--cdi.enabled", ""},
		{"2.4, drop-in over gpuadm's root", lab.Options{Dist: "trixie", Containerd: "2.4"}, "version = 3\n", "", ""},
		{"2.4, drop-in after gpuadm's", lab.Options{Dist: "trixie", Containerd: "2.4"}, "version = 3\n" + imports, "--set-as-default", "set_as_default = true\n"},
		{
			"2.4, drop-in before gpuadm's",
			lab.Options{Dist: "trixie", Containerd: "2.4"},
			"version = 3\n" + imports,
			"--drop-in-config=/etc/containerd/conf.d/10-nvidia.toml", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.GPUs = 8
			n := boot(t, c.options)
			n.Put("/usr/bin/nvidia-ctk", string(must.Get(os.ReadFile(parts.Get(t, parts.CTK).CTK.Path))(t)), 0o755)
			n.Must("sh", "-c", "rm -rf /etc/containerd && mkdir -p /etc/containerd/conf.d")
			n.Put(config, c.file, 0o644)
			n.Put(specFile, "format = 1\n[runtime]\n"+c.spec, 0o644)
			n.Must("systemctl", "restart", daemon)
			n.answers()

			ctk := func() {
				t.Helper()
				n.Must("sh", "-c", "nvidia-ctk runtime configure --runtime=containerd "+c.ctk)
				n.Must("systemctl", "restart", daemon)
				n.answers()
			}

			idle := func(when string) {
				t.Helper()
				pid := n.MainPID(daemon)
				again := n.gpuadm(0, "apply", "--yes")
				nothing := strings.HasPrefix(again.Stdout, "Nothing to do") && strings.Count(again.Stdout, "\n") == 1
				check.That(t, nothing, "%s: %s", when, again) // the CDI spec may wait for a driver
				check.That(t, n.MainPID(daemon) == pid, "%s: containerd was restarted", when)
			}

			theirs := func(when string) {
				t.Helper()
				n.answers()
				dump := n.Must("containerd", "config", "dump")
				check.That(t, strings.Contains(dump, "runtimes.nvidia]"), "%s: no handler in %s", when, dump)
			}

			n.gpuadm(0, "apply", "--yes")
			n.working()
			ctk()
			idle("after nvidia-ctk")
			n.gpuadm(0, "undo", "--yes", "--to", "all")
			theirs("undone")
			idle("applied to nvidia-ctk's")
			if c.options.Containerd == "" {
				return // a second nvidia-ctk takes a node with containerd 1.x down: NVIDIA/k8s-device-plugin issue 1145
			}
			ctk()
			idle("nvidia-ctk once more")
		})
	}
}
