// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// shown is what `apt-cache show` of Debian 12 says of two packages, shortened.
const shown = `Package: dkms
Version: 3.0.10-8+deb12u1
Architecture: all
Filename: pool/main/d/dkms/dkms_3.0.10-8+deb12u1_all.deb
Size: 48716
SHA256: 12da620048a926afa72f1f46f3477fb9ad3d2a6b3446da56cc43fe1a413b6944

Package: gcc
Version: 4:12.2.0-3
Architecture: amd64
Filename: pool/main/g/gcc-defaults/gcc_12.2.0-3_amd64.deb
Size: 5216
SHA256: bb63b0fb2797e2a3a294dab8a02614930c557ec1f4ea96637c244b8b5f87e630
`

// bakedImage is an image with packages that were baked into it, and one that no list knows; status is what the journal says of it.
func bakedImage(t *testing.T) (n *simhost.Node, status converge.Status) {
	t.Helper()
	n = image(t)
	list, err := n.ReadFile(packages.DpkgStatus)
	must.OK(t, err)
	add := func(name, version, arch string) {
		list = append(list, "\nPackage: "+name+"\nStatus: install ok installed\nArchitecture: "+arch+"\nVersion: "+version+"\n"...)
		status.Made = append(status.Made, converge.Mark{Stage: "packages", Kind: "package", Name: name})
	}
	add("nvidia-driver", "580.95.05-1", "amd64")
	add("dkms", "3.0.10-8+deb12u1", "all")
	add("gcc", "4:12.2.0-3", "amd64")
	status.Made = append(status.Made, converge.Mark{Kind: "package", Name: "gone"}, converge.Mark{Kind: "file", Name: Binary})
	for _, dir := range []string{"/usr/local", "/usr/local/sbin"} {
		_ = n.Mkdir(dir, host.Attr{Mode: 0o755}) // it may be there
	}
	must.OK(t, errors.Join(n.WriteFile(packages.DpkgStatus, list, host.Attr{Mode: 0o644}), n.WriteFile(Binary, []byte("x"), host.Attr{Mode: 0o755})))
	lists(n, shown)
	status.Host.Facts.OS = facts.OS{ID: "debian", Version: "12", Name: "Debian GNU/Linux 12 (bookworm)"}
	n.Bake()
	return n, status
}

// lists has apt-cache say it.
func lists(n *simhost.Node, says string) {
	n.Install("apt-cache", simhost.Program{
		Looks: func(argv []string) bool { return slices.Contains(argv, "show") },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			return []byte(says), &host.CommandError{Argv: argv, Code: 100, Cause: errors.New("exit status 100")} // it does not know all
		},
	})
}

// billOf seals, and returns the bill of materials and its package URLs with the start of their digests.
func billOf(t *testing.T, n *simhost.Node, is converge.Status) (text []byte, all []string) {
	t.Helper()
	must.Get(Seal(t.Context(), n, spec.Spec{}, is, "1.0.0", false))(t)
	text, err := n.ReadFile(BillFile)
	must.OK(t, err)
	var b bill
	err = json.Unmarshal(text, &b)
	check.That(t, err == nil, "%v\n%s", err, text)
	for _, c := range b.Components {
		line := c.Purl
		if c.Hashes != nil {
			line += " " + c.Hashes[0].Content[:8]
		}
		all = append(all, line)
	}
	return text, all
}

// TestBillRunfile: the driver of NVIDIA's installer is in the bill with its runfile's digest, also after a later bake that made something else.
func TestBillRunfile(t *testing.T) {
	n, is := bakedImage(t)
	asked := spec.Spec{Driver: spec.Driver{Version: "580.95.05", Source: "runfile", Runfile: spec.Runfile{SHA256: strings.Repeat("ab", 32)}}}
	for _, made := range []converge.Mark{{Kind: "runfile", Name: "nvidia"}, {Kind: "file", Name: "/etc/other"}} {
		is.Made = []converge.Mark{made}
		must.Get(Seal(t.Context(), n, asked, is, "1.0.0", false))(t)
		b, err := readBill(n)
		must.OK(t, err)
		want := component{Ref: "runfile nvidia", Type: "library", Name: "NVIDIA-Linux", Version: "580.95.05", Hashes: digest(strings.Repeat("ab", 32))}
		check.That(t, slices.ContainsFunc(b.Components, func(c component) bool { return cmp.Equal(c, want) }), "after %s: %+v", made.Kind, b.Components)
	}
}

var update = flag.Bool("update", false, "rewrite the golden file")

// TestBill: the bill of materials names each package that was baked and is there, and gpuadm, with the digests that are known. It is
// the same for the same image. images/build/sbom's test has CycloneDX's own library and schema judge the golden file.
func TestBill(t *testing.T) {
	n, is := bakedImage(t)
	text, got := billOf(t, n, is)
	want := []string{
		"pkg:golang/github.com/gpuadm/gpuadm@1.0.0 2d711642",
		"pkg:deb/debian/dkms@3.0.10-8%2Bdeb12u1?arch=all&distro=debian-12 12da6200",
		"pkg:deb/debian/gcc@4:12.2.0-3?arch=amd64&distro=debian-12 bb63b0fb",
		"pkg:deb/debian/nvidia-driver@580.95.05-1?arch=amd64&distro=debian-12",
	}
	check.None(t, cmp.Diff(want, got), "-want +got:")
	const golden = "testdata/sbom.cdx.json"
	if *update {
		must.OK(t, os.WriteFile(golden, text, 0o644))
	}
	kept, err := os.ReadFile(golden)
	check.That(t, err == nil && bytes.Equal(kept, text), "the bill is not as in %s (%v); if that is meant: make update\n%s", golden, err, text)
	other, is := bakedImage(t)
	slices.Reverse(is.Made)
	if again, _ := billOf(t, other, is); !bytes.Equal(text, again) {
		t.Errorf("another bake of the same has another bill:\n%s", cmp.Diff(string(text), string(again)))
	}
}

// TestBillOfSecondBake: where the journal names nothing the bill stays. Where it names more, the packages of the first bake are in it
// still, with the digests that the lists said which the seal has removed, and those that are gone are not.
func TestBillOfSecondBake(t *testing.T) {
	n, is := bakedImage(t)
	text, _ := billOf(t, n, is)
	lists(n, "")
	again, _ := billOf(t, n, converge.Status{})
	if !bytes.Equal(text, again) {
		t.Errorf("a second bake has changed it:\n%s", cmp.Diff(string(text), string(again)))
	}
	list, err := n.ReadFile(packages.DpkgStatus)
	must.OK(t, err)
	upgraded := strings.Replace(strings.Replace(string(list), "Package: gcc\nStatus: install ok installed", "Package: gcc\nStatus: deinstall ok config-files", 1), "580.95.05-1", "590.44.01-1", 1)
	must.OK(t, n.WriteFile(packages.DpkgStatus, []byte(upgraded), host.Attr{Mode: 0o644}))
	is.Made = is.Made[:1]
	_, got := billOf(t, n, is)
	want := []string{
		"pkg:golang/github.com/gpuadm/gpuadm@1.0.0 2d711642",
		"pkg:deb/debian/dkms@3.0.10-8%2Bdeb12u1?arch=all&distro=debian-12 12da6200",
		"pkg:deb/debian/nvidia-driver@590.44.01-1?arch=amd64&distro=debian-12",
	}
	check.None(t, cmp.Diff(want, got), "-want +got:")
}

// TestPurl: examples of the purl specification's own, types/rpm-definition.json and types/deb-definition.json, with the distribution.
func TestPurl(t *testing.T) {
	for want, c := range map[string]struct {
		packager string
		os       facts.OS
		d        packages.Description
	}{
		"pkg:rpm/fedora/curl@7.50.3-1.fc25?arch=i386&distro=fedora-25":                     {"dnf", facts.OS{ID: "fedora", Version: "25"}, packages.Description{Name: "curl", Version: "7.50.3-1.fc25", Arch: "i386"}},
		"pkg:rpm/redhat/nvidia-driver@580.95.05-1.el9?arch=x86_64&distro=rhel-9.4&epoch=3": {"dnf", facts.OS{ID: "rhel", Version: "9.4"}, packages.Description{Name: "nvidia-driver", Version: "3:580.95.05-1.el9", Arch: "x86_64"}},
		"pkg:deb/debian/libstdc%2B%2B6@12.2.0-14~deb12u1?arch=amd64&distro=debian-12":      {"apt", facts.OS{ID: "debian", Version: "12"}, packages.Description{Name: "libstdc++6", Version: "12.2.0-14~deb12u1", Arch: "amd64"}},
	} {
		check.Equal(t, purl(c.packager, c.os, c.d), want, "got")
	}
}
