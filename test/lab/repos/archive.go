// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/listings"
)

// debianArchive are the driver packages of all pockets of Debian's archive, with everything the listings say of them, and
// what they depend on without being listed: a package of which others need one version exists in it.
func (in parts) debianArchive(distro string) ([]Package, error) {
	var list []Package
	for _, l := range listings.For(distro, "debian") {
		for _, r := range l.Packages {
			if r.Name == "dkms" || strings.HasPrefix(r.Name, "nvidia-tesla") {
				continue
			}
			p := Package{
				Name: r.Name, Version: r.Version, Arch: noArch(r.Arch), Component: l.Component[r.Name],
				Depends: words(l.Depends[r.Name]), PreDepends: words(l.PreDepends[r.Name]), Provides: words(l.Provides[r.Name]),
			}
			if err := in.aptRole(&p, p.upstreamOf(), func(name string) bool { yes, _ := l.Has(name); return yes }); err != nil {
				return nil, err
			}
			list = append(list, p)
		}
	}
	return append(list, surroundings(list)...), nil
}

func (p Package) upstreamOf() string { return upstream(p.Version) }

// relation is one name in a dependency: its name and, if there is one, the version it must have.
var relation = regexp.MustCompile(`^([a-z0-9.+-]+)(?::any)?(?: \((=|>=|<=|<<|>>) ([^)]+)\))?$`)

// surroundings are the packages that are needed and not listed, without a file.
func surroundings(list []Package) []Package {
	there := map[string]bool{"dkms": true, "gcc": true, "make": true}
	for _, p := range list {
		there[p.Name] = true
		for _, name := range p.Provides {
			word, _, _ := strings.Cut(name, " ")
			there[word] = true
		}
	}
	made := map[string]bool{}
	var more []Package
	for _, p := range list {
		for _, need := range slices.Concat(p.PreDepends, p.Depends) {
			alternatives := strings.Split(need, " | ")
			if slices.ContainsFunc(alternatives, func(a string) bool {
				m := relation.FindStringSubmatch(a)
				return m != nil && there[m[1]]
			}) {
				continue
			}
			m := relation.FindStringSubmatch(alternatives[0])
			if m == nil {
				continue
			}
			version := m[3]
			if version == "" || m[2] == "<=" || m[2] == "<<" {
				version = "0.lab"
			}
			if key := m[1] + " " + version; !made[key] {
				made[key] = true
				more = append(more, Package{Name: m[1], Version: version, Component: "main"})
			}
		}
	}
	return more
}

// precompiled are the kernel modules that Ubuntu has signed for Kernel: of every server branch that is not transitional, the newest
// build needs the newest libraries. Source: the page of linux-modules-nvidia-580-server-open-generic-7.0, in the listings.
func precompiled(editions []edition) []Package {
	var list []Package
	builds := map[string]int{}
	for _, e := range editions {
		if e.draws != "" {
			continue
		}
		builds[e.branch()]++
		for _, open := range []string{"", "-open"} {
			list = append(list, Package{
				Name: "linux-modules-nvidia-" + e.branch() + "-server" + open + "-" + Kernel, Component: "restricted",
				Version: "6.1.0-99.99+" + string(rune('0'+builds[e.branch()])),
				Depends: []string{"nvidia-kernel-common-" + e.branch() + "-server (>= " + e.version + ")"},
				Instead: []string{"linux-modules-nvidia-of-" + Kernel},
				Files:   map[string]File{"/usr/lib/modules/" + Kernel + "/kernel/nvidia-" + e.branch() + "-server" + open + "/nvidia.ko": {Text: e.version + "\n"}},
			})
		}
	}
	return list
}

// archive is a distribution's: one suite with components.
type archive struct {
	dir, suite string
	key        gpgKey
}

// build lays out pool/COMPONENT and dists/SUITE.
func (a archive) build(ctx context.Context, pool string, list []Package) error {
	components := map[string]bool{"main": true}
	for _, p := range list {
		component := p.Component
		if component == "" {
			return fmt.Errorf("cannot tell the component of %s", p.Name)
		}
		components[component] = true
		dir := filepath.Join(a.dir, "pool", component)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Link(filepath.Join(pool, p.file()), filepath.Join(dir, p.file())); err != nil {
			return err
		}
	}
	dists := filepath.Join(a.dir, "dists", a.suite)
	var names []string
	for component := range components {
		names = append(names, component)
		index, err := command(ctx, a.dir, "apt-ftparchive", "packages", "pool/"+component)
		if err != nil {
			return err
		}
		if err := writeIndex(filepath.Join(dists, component, "binary-amd64"), index); err != nil {
			return err
		}
	}
	slices.Sort(names)
	origin := "Debian"
	if slices.Contains(names, "restricted") {
		origin = "Ubuntu"
	}
	args := []string{"release", "."}
	for field, value := range map[string]string{"Origin": origin, "Label": origin, "Suite": a.suite, "Codename": a.suite, "Components": strings.Join(names, " ")} {
		args = append([]string{"-o", "APT::FTPArchive::Release::" + field + "=" + value}, args...)
	}
	release, err := command(ctx, dists, "apt-ftparchive", args...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dists, "Release"), release, 0o644); err != nil {
		return err
	}
	_, err = a.key.gpg(ctx, "--clearsign", "--output", filepath.Join(dists, "InRelease"), filepath.Join(dists, "Release"))
	return err
}

// writeIndex writes an index of packages, plain and packed.
func writeIndex(dir string, text []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var packed bytes.Buffer
	pack := gzip.NewWriter(&packed)
	_, err := pack.Write(text)
	return errors.Join(err, pack.Close(),
		os.WriteFile(filepath.Join(dir, "Packages"), text, 0o644), os.WriteFile(filepath.Join(dir, "Packages.gz"), packed.Bytes(), 0o644))
}
