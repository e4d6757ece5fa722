// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
)

// TestSlowBake: Debian's real open kernel modules are baked into a root folder with Debian's kernel, which does not run here, and the
// image boots, without a network, with nothing left to make.
func TestSlowBake(t *testing.T) {
	lab.Asked(t)
	mirror, err := parts.DebianMirror(t.Context())
	lab.Have(t, err)
	options, upper := lab.Options{Dist: "bookworm", Headers: true}, newDisk(t)
	kernel := ""
	lab.Have(t, lab.OnDisk(options, upper, func(root string) error {
		i := img{t: t, root: root}
		kernel = filepath.Base(strings.TrimSpace(i.must("sh", "-c", "ls -d "+root+"/lib/modules/*")))
		i.put("/etc/apt/sources.list", "deb "+mirror+" bookworm main contrib non-free non-free-firmware\n", 0o644)
		i.put(specFile, slowSpec, 0o644)
		began := time.Now()
		t.Log(i.must(append(i.bake(), "--gpu", "A100-80GB", "--seal")...))
		t.Logf("bake took %s", time.Since(began).Round(time.Second))
		says(t, lab.Result{Stdout: i.must(append(i.bake(), "--gpu", "A100-80GB", "--seal")...)}, "Nothing to do.")
		return nil
	}))
	options.Over, options.GPUs = upper, 1
	n := node{lab.Boot(t, options), t}
	if running := strings.TrimSpace(n.Must("uname", "-r")); running == kernel {
		t.Fatalf("kernel %s runs", kernel)
	}
	version, _, _ := strings.Cut(strings.TrimSpace(n.Must("dpkg-query", "--show", "--showformat=${Version}", "nvidia-open-kernel-dkms")), "-")
	for _, part := range []string{"", "-uvm", "-modeset", "-drm", "-peermem"} {
		name := "nvidia-current-open" + part
		if is := modinfo(n.Host, kernel, "version", name); is != version {
			t.Errorf("%s: version %q", name, is)
		}
		if is := modinfo(n.Host, kernel, "vermagic", name); !strings.HasPrefix(is, kernel+" ") {
			t.Errorf("%s: vermagic %q", name, is)
		}
	}
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
}
