// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/lab"
)

// Release is what NVIDIA's RPM packages have behind the driver's version; those of the toolkit and companions have "1".
const (
	rpmRelease   = "1.el9"
	plainRelease = "1"
	rpmEpoch     = "3"
)

// RPMVersion is a driver's version as its packages for RHEL write it.
func RPMVersion(version string) string { return rpmEpoch + ":" + version + "-" + rpmRelease }

// section is all that a spec file says of one package.
func (p Package) section() string {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	say("%%package -n %s\nSummary: is NVIDIA's %[1]s in tests\nAutoReqProv: no", p.Name)
	if epoch := split(p.Version)[0]; epoch != "" {
		say("Epoch: %s", epoch)
	}
	if p.Arch == "noarch" {
		say("BuildArch: noarch")
	}
	for _, f := range []struct {
		field string
		names []string
	}{{"Requires", p.Depends}, {"Provides", p.Provides}, {"Conflicts", p.Conflicts}, {"Obsoletes", p.Obsoletes}} {
		for _, name := range f.names {
			say("%s: %s", f.field, name)
		}
	}
	for _, name := range p.Instead {
		say("Provides: %s\nConflicts: %[1]s", name)
	}
	say("%%description -n %s\nIs NVIDIA's in tests.", p.Name)
	for _, s := range [][3]string{{"pre", "before", p.Before}, {"post", "after", p.After}, {"preun", "gone", p.Gone}} {
		say("%%%s -n %s\n%s", s[0], p.Name, script(p, s[1], s[2]))
	}
	say("%%files -n %s", p.Name)
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if strings.HasPrefix(name, "/etc/") {
			say("%%config(noreplace) %s", name)
			continue
		}
		say("%s", name)
	}
	return text.String()
}

// buildRPMs builds packages of one version and release into the folder /rpms of a chroot.
func buildRPMs(ctx context.Context, c lab.Chroot, list []Package) error {
	first := list[0]
	version := split(first.Version)
	name, release := "lab-"+first.Name+"-"+version[1], version[2]
	tree := "/build/" + name
	spec := "Name: " + name + "\nVersion: " + version[1] + "\nRelease: " + release + "\nSummary: makes the others\nLicense: Apache-2.0\n" +
		// Unchanged: programs end in what they say.
		"%global debug_package %{nil}\n%global __os_install_post %{nil}\n%description\nMakes the others.\n" +
		"%install\nmkdir -p %{buildroot} && cp -a " + tree + "/. %{buildroot}/\n"
	if err := os.MkdirAll(filepath.Join(c.Root, tree), 0o755); err != nil {
		return fmt.Errorf("cannot make a folder for %s: %w", name, err)
	}
	for _, p := range list {
		// Packages that take each other's place have the same files.
		if err := p.lay(filepath.Join(c.Root, tree)); err != nil {
			return err
		}
		spec += p.section()
	}
	if err := (File{Text: spec}).lay(filepath.Join(c.Root, tree+".spec")); err != nil {
		return fmt.Errorf("cannot write the spec file of %s: %w", name, err)
	}
	_, err := c.Run(ctx, nil, "rpmbuild", "--quiet", "-bb", "--define=_topdir /build/top-"+name, "--define=_rpmdir /rpms",
		"--define=_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", "--define=_build_id_links none",
		"--define=_binary_payload w1.gzdio", tree+".spec")
	return err
}
