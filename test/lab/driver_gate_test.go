// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// kernels makes a source for apt of a metapackage of a version, and of the packages that are named behind it: the first is the
// kernel that the metapackage brings.
const kernels = `set -e
mkdir -p /srv/kernels /tmp/k/DEBIAN; cd /srv/kernels; rm -f *
version=$1; shift
deb() { printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: lab <lab@example.invalid>\n%sDescription: stands in for a kernel\n' "$1" "$2" "$3" >/tmp/k/DEBIAN/control; dpkg-deb -Zgzip -z1 --build /tmp/k . >/dev/null; }
deb linux-image-lab $version "Depends: $1
"
for p; do deb $p 1; done
for f in *.deb; do dpkg-deb -f $f; printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' $f $(stat -c %s $f) $(sha256sum $f | cut -d' ' -f1); done >Packages
echo 'deb [trusted=yes] file:/srv/kernels ./' >/etc/apt/sources.list.d/kernels.list
apt-get update
`

// TestLabDriverGate: apt keeps back a newer kernel and its metapackage while nobody has its headers, through applies that have
// nothing to do and start no child; and brings it after the first apply that finds them in apt's lists.
func TestLabDriverGate(t *testing.T) {
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	running := strings.TrimSpace(n.Must("uname", "-r"))
	major, rest, _ := strings.Cut(running, ".")
	newer := major + ".999" + strings.TrimLeft(strings.TrimPrefix(rest, "."), "0123456789")
	image, headers := "linux-image-"+newer, "linux-headers-"+newer
	n.Must("sh", "-c", kernels, "sh", "1", "linux-image-"+running)
	aptExits(t, n.Host, 0, "", "install", "linux-image-lab")

	spec := strings.Replace(n.spec("580.65.06", ""), "[driver]\n", "[driver]\nkernel_gate = \"14d\"\n", 1)
	apply := []string{"apply", "sources", "packages", "services"}
	has := func(name, version string) {
		t.Helper()
		if is := n.AptState()[name]; (is != "") != (version != "") || !strings.HasPrefix(is, version) {
			t.Errorf("%s is %q; want version %q", name, is, version)
		}
	}
	upgrade := func(held string) {
		t.Helper()
		aptExits(t, n.Host, 0, held, "dist-upgrade")
	}
	n.wants(0, spec, apply...)
	n.Must("sh", "-c", kernels, "sh", "2", image)
	upgrade("kept back")
	has(image, "")
	n.wants(0, spec, apply...)
	says(t, n.wants(0, spec, "plan", "services"), "kernel "+newer+" is held back until ", "no source had "+headers)
	upgrade("kept back")
	has(image, "")

	n.Must("sh", "-c", kernels, "sh", "2", image) // lists that change no kernel's fate
	const log = "/run/strace"
	if r := n.Exec(append([]string{"strace", "-f", "-e", "trace=execve", "-o", log, "gpuadm"}, apply...)...); r.Exit != 0 || !strings.Contains(r.Stdout, "Nothing to do.") {
		t.Errorf("with new lists alone: %s", r)
	}
	if trace := n.Get(log); strings.Count(trace, "execve(") != 1 {
		t.Errorf("with new lists alone children were started:\n%s", trace)
	}

	n.Must("sh", "-c", kernels, "sh", "2", image, headers)
	upgrade("kept back")
	n.wants(0, spec, apply...)
	upgrade("")
	has(image, "1")
	has("linux-image-lab", "2")
	n.gpuadm(0, "undo", "--to", "all")
	if r := n.Exec("test", "-e", "/etc/apt/preferences.d/00-gpuadm-kernel"); r.Exit == 0 {
		t.Error("undo of all left the gate")
	}
}
