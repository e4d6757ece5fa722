// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/listings"
)

// Archive is where an archive of a distribution lies below a variant.
const Archive = "archive"

// suite is what an archive calls a distribution's release.
func suite(distro string) string {
	switch distro {
	case "debian12":
		return "bookworm"
	case "debian13":
		return "trixie"
	case "ubuntu2204":
		return "jammy"
	case "ubuntu2404":
		return "noble"
	case "ubuntu2604":
		return "resolute"
	}
	return ""
}

// aptPools returns the packages of a distribution by where they lie below a variant: flat
// repositories, and pools of an archive.
func (in parts) aptPools(distro string) (map[string][]Package, error) {
	archive, ofArchive := strings.CutSuffix(distro, "-archive")
	if ofArchive {
		list, err := in.debianArchive(archive)
		return map[string][]Package{Archive + "/" + archive: list}, err
	}

	cuda := debCUDA(distro)
	editions := debianNVIDIA()
	pools := map[string][]Package{cuda: debOthers()}
	if strings.HasPrefix(distro, "ubuntu") {
		editions = ubuntuNVIDIA(distro)
		others := debOthers()
		list, err := in.ubuntuPool(distro, others[1:])
		if err != nil {
			return nil, err
		}
		pools[cuda] = others[:1:1]
		pools[Archive+"/"+distro] = list
	}

	for _, e := range editions {
		list, err := in.aptPackages(e)
		if err != nil {
			return nil, err
		}
		pools[cuda] = append(pools[cuda], list...)
	}

	for _, v := range Toolkits() {
		pools[debToolkit] = append(pools[debToolkit], in.debToolkit(v)...)
	}
	for at := range pools {
		pools[at] = once(pools[at])
	}
	return pools, nil
}

// ubuntuPool returns the packages of Ubuntu's own archive. others are in its component main.
func (in parts) ubuntuPool(distro string, others []Package) ([]Package, error) {
	for i := range others {
		others[i].Component = "main"
	}
	editions := ubuntuArchive(distro)
	pool := append(others, precompiled(editions)...)
	for _, e := range editions {
		list, err := in.aptPackages(e)
		if err != nil {
			return nil, err
		}
		pool = append(pool, list...)
	}

	return pool, nil
}

// once leaves out a package that the list has in the same version before.
func once(list []Package) []Package {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(p Package) bool {
		key := p.Name + " " + p.Version
		again := seen[key]
		seen[key] = true
		return again
	})
}

// debianArchive returns the driver packages of all pockets of Debian's archive, with everything the
// listings say of them, and what they depend on without being listed: a package of which others
// need one version exists in it.
func (in parts) debianArchive(distro string) ([]Package, error) {
	var list []Package
	for _, l := range listings.For(distro, "debian") {
		has := func(name string) bool {
			listed, _ := l.Has(name)
			return listed
		}

		for _, r := range l.Packages {
			if r.Name == "dkms" || strings.HasPrefix(r.Name, "nvidia-tesla") {
				continue
			}
			p := Package{
				Name:       r.Name,
				Version:    r.Version,
				Arch:       noArch(r.Arch),
				Component:  l.Component[r.Name],
				Depends:    words(l.Depends[r.Name]),
				PreDepends: words(l.PreDepends[r.Name]),
				Provides:   words(l.Provides[r.Name]),
			}
			if err := in.aptRole(&p, upstream(p.Version), has); err != nil {
				return nil, err
			}
			list = append(list, p)
		}
	}

	return append(list, surroundings(list)...), nil
}

// A relation is one name in a dependency and, if there is one, the version that it must have.
type relation struct {
	name     string
	operator string // =, >=, <=, <<, >>; "" for any version
	version  string
}

var relationForm = regexp.MustCompile(`^([a-z0-9.+-]+)(?::any)?(?: \((=|>=|<=|<<|>>) ([^)]+)\))?$`)

// alternatives returns the relations of a dependency, of which one suffices. It leaves out what is
// not in a form that the listings have.
func alternatives(dependency string) (all []relation) {
	for text := range strings.SplitSeq(dependency, " | ") {
		if m := relationForm.FindStringSubmatch(text); m != nil {
			all = append(all, relation{m[1], m[2], m[3]})
		}
	}
	return all
}

// surroundings returns the packages that are needed and not listed, without a file.
func surroundings(list []Package) (missing []Package) {
	available := map[string]bool{"dkms": true, "gcc": true, "make": true}
	for _, p := range list {
		available[p.Name] = true
		for _, provides := range p.Provides {
			name, _, _ := strings.Cut(provides, " ")
			available[name] = true
		}
	}

	isAvailable := func(r relation) bool { return available[r.name] }

	for _, p := range list {
		for _, dependency := range slices.Concat(p.PreDepends, p.Depends) {
			anyOf := alternatives(dependency)
			if len(anyOf) > 0 && !slices.ContainsFunc(anyOf, isAvailable) {
				missing = append(missing, anyOf[0].minimal())
			}
		}
	}

	return once(missing)
}

// minimal returns a package that satisfies the relation.
func (r relation) minimal() Package {
	p := Package{Name: r.name, Version: r.version, Component: "main"}
	anyOlder := r.operator == "" || r.operator == "<=" || r.operator == "<<"
	if anyOlder {
		p.Version = "0.lab"
	}
	return p
}

// precompiled returns the kernel modules that Ubuntu has signed for Kernel: of every server branch
// that is not transitional, the newest build needs the newest libraries.
// Source: the page of linux-modules-nvidia-580-server-open-generic-7.0, in the listings.
func precompiled(editions []edition) []Package {
	var list []Package
	builds := map[string]int{}
	for _, e := range editions {
		if e.draws != "" {
			continue
		}
		builds[e.branch()]++
		for _, open := range []string{"", "-open"} {
			flavour := e.branch() + "-server" + open
			module := "/usr/lib/modules/" + Kernel + "/kernel/nvidia-" + flavour + "/nvidia.ko"
			list = append(list, Package{
				Name:      "linux-modules-nvidia-" + flavour + "-" + Kernel,
				Component: "restricted",
				Version:   fmt.Sprintf("6.1.0-99.99+%d", builds[e.branch()]),
				Depends:   []string{"nvidia-kernel-common-" + e.branch() + "-server (>= " + e.version + ")"},
				Instead:   []string{"linux-modules-nvidia-of-" + Kernel},
				Files:     map[string]File{module: {Text: e.version + "\n"}},
			})
		}
	}

	return list
}

// Apt returns what apt's repositories of a distribution have, by where they lie, for a simulated
// apt: their programs cannot be run.
func Apt(distro string) (map[string][]Package, error) { return parts{}.aptPools(distro) }
