// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
)

// String names a repository as errors do.
func (r repositoryRow) String() string {
	switch r.Source {
	case SourceAmazon:
		return "Amazon's repository of NVIDIA's packages for " + r.Name
	case SourceUbuntu:
		return "Ubuntu's archive for " + r.Name
	case SourceDebian:
		return "Debian's archive for " + r.Name
	case SourceMicrosoft:
		return "Microsoft's repository for " + r.Name
	case SourceRedHat:
		return "Red Hat's repositories for " + r.Name
	case SourceAlmaLinux:
		return "AlmaLinux's repository for " + r.Name
	case SourceRunfile:
		return "a runfile"
	}
	return "NVIDIA's repository for " + r.Name
}

// arch is the repository's word for an architecture; "" if it has no packages for it.
func (r repositoryRow) arch(of string) string {
	switch of {
	case "amd64":
		return r.AMD64
	case "arm64":
		return r.ARM64
	}
	return ""
}

// serves says whether the row is for an os-release's ID and VERSION_ID.
func (r repositoryRow) serves(id, version string) bool {
	if !slices.Contains(r.IDs, id) {
		return false
	}
	return r.Version == "*" || version == r.Version || strings.HasPrefix(version, r.Version+".")
}

// onlyOneBranch says whether the repository has the branch First and no other.
func (r repositoryRow) onlyOneBranch() bool { return r.First > 0 && r.First == r.Last }

// repositories returns the rows for the machine's distribution, or else for the first distribution
// in its ID_LIKE, which like then names.
func (c Catalog) repositories(m hardware.Machine) (rows []repositoryRow, like string) {
	if rows := c.repositoriesOf(m.ID, m.Version); len(rows) > 0 {
		return rows, ""
	}

	for _, like := range m.Like {
		rows := c.repositoriesOf(like, m.Version)
		// A row for every version is for the distribution itself: it says nothing of one like it.
		rows = slices.DeleteFunc(rows, func(r repositoryRow) bool { return r.Version == "*" })
		if len(rows) > 0 {
			return rows, like
		}
	}

	return nil, ""
}

// repositoriesOf returns the rows for an os-release's ID and VERSION_ID.
func (c Catalog) repositoriesOf(id, version string) []repositoryRow {
	var rows []repositoryRow
	for _, row := range c.Repositories {
		if row.serves(id, version) {
			rows = append(rows, row)
		}
	}

	return rows
}

// chooseRepository chooses the repository of the packages. It never mixes sources, since some of
// their packages replace each other.
func (p *plan) chooseRepository() error {
	if p.machine.Arch == "" {
		return refuse(
			"cannot choose a driver: cannot determine the CPU architecture: there is no dynamic loader, no shell and no packaging system",
			"make sure that the folder is the root of an image")
	}

	if p.spec.Source == SourceRunfile {
		return p.chooseRunfile()
	}

	rows, like := p.catalog.repositories(p.machine)
	if len(rows) == 0 {
		return refuse(
			fmt.Sprintf("cannot install a driver on %s: no repository is known for it", p.system()),
			`write source = "runfile" and a version in [driver], or owner = "other" if another tool installs the driver`)
	}

	row, err := p.pickRepository(rows)
	if err != nil {
		return err
	}

	if like != "" {
		p.warn("%s is like %s, says its os-release: the packages of %s are taken", p.system(), like, row.Name)
	}
	p.repo = row
	p.choice.Source = row.Source
	p.choice.Repo = Repository{
		Distro:    row.Name,
		Arch:      row.arch(p.machine.Arch),
		Component: row.Component,
		Needs:     slices.Clone(row.Needs),
	}
	return p.setURLAndKey()
}

// system names the machine's operating system: ubuntu 24.04.
func (p *plan) system() string {
	return strings.TrimSpace(p.machine.ID + " " + p.machine.Version)
}

// requested lists the rows that the spec's source allows; with auto NVIDIA's, then the
// distribution's.
func (p *plan) requested(rows []repositoryRow) []repositoryRow {
	var vendors, distros []repositoryRow
	for _, row := range rows {
		if row.Source == SourceNVIDIA {
			vendors = append(vendors, row)
		} else {
			distros = append(distros, row)
		}
	}

	switch p.spec.Source {
	case "nvidia":
		return vendors
	case "distro":
		return distros
	}

	return append(vendors, distros...)
}

// pickRepository takes the first requested row that has packages for the machine.
func (p *plan) pickRepository(rows []repositoryRow) (repositoryRow, error) {
	var otherArch, refused []repositoryRow
	for _, row := range p.requested(rows) {
		switch {
		case row.Refused != "":
			refused = append(refused, row)
		case row.arch(p.machine.Arch) == "":
			otherArch = append(otherArch, row)
		default:
			if len(otherArch) > 0 {
				p.warn("%s has no packages for %s: those of %s are taken", otherArch[0], p.machine.Arch, row)
			}
			return row, nil
		}
	}

	switch {
	case len(otherArch) > 0:
		p.repo = otherArch[0]
		why := "it has no packages for " + p.machine.Arch
		if p.repo.Source == SourceNVIDIA {
			why = "NVIDIA publishes no packages for " + p.machine.Arch + " there"
		}
		return repositoryRow{}, p.refuse(fmt.Sprintf("cannot install from %s: %s", p.repo, why))
	case len(refused) > 0:
		p.repo = refused[0]
		return repositoryRow{}, p.refuse(
			fmt.Sprintf("cannot install from %s: %s", p.repo, p.repo.Refused),
			`or write owner = "other" in [driver], and install it yourself: gpuadm then verifies it`)
	}

	where := "NVIDIA has no repository for it"
	if p.spec.Source == "distro" {
		where = "its own archive has none that is known"
	}
	return repositoryRow{}, refuse(
		fmt.Sprintf("cannot install a driver on %s from source = %q: %s", p.system(), p.spec.Source, where),
		`write source = "auto" in [driver]`)
}

// setURLAndKey takes URL and key from the spec's mirror, or else the vendor's with a fingerprint
// that is known.
func (p *plan) setURLAndKey() error {
	repo := &p.choice.Repo
	if mirror := p.spec.Repo; mirror.URL != "" {
		repo.URL = mirror.URL
		repo.KeyURL = mirror.Key
		repo.Fingerprint = mirror.Fingerprint
		repo.Signed = mirror.Signature
		repo.Mirror = true
		return nil
	}

	if p.repo.URL == "" && p.repo.Source == SourceNVIDIA {
		return refuse(
			fmt.Sprintf("cannot install from %s: NVIDIA's guide names the system, and neither the repository's address nor its key was known at this release", p.repo),
			`write url, key and fingerprint in [driver.repo]: NVIDIA's Driver Installation Guide has the address`,
			`or write owner = "other" in [driver], and install it yourself: gpuadm then verifies it`)
	}

	if p.repo.URL == "" {
		return nil // the distribution's own repository, which brings its keys
	}

	repo.URL = strings.NewReplacer("{arch}", repo.Arch, "{version}", p.machine.Version).Replace(p.repo.URL)
	if p.repo.Key == "" {
		return refuse(
			fmt.Sprintf("cannot trust %s: which key signs it is not known to this release", p.repo),
			fmt.Sprintf(`find the key in %s, compare its fingerprint with a fingerprint that NVIDIA publishes, save the key in a file, and write url = %[1]q, key = that file and fingerprint in [driver.repo]`, repo.URL))
	}

	repo.KeyURL = repo.URL + p.repo.Key + ".pub"
	for _, key := range p.catalog.Keys {
		switch {
		case key.Name != p.repo.Key:
		case key.Fingerprint != "":
			repo.Fingerprint = key.Fingerprint
		default:
			repo.Fingerprint = "sha256:" + key.SHA256
		}
	}

	return nil
}

// runfileRow describes NVIDIA's installer as a repository.
func (p *plan) runfileRow() repositoryRow {
	row := p.catalog.Runfiles[0]
	return repositoryRow{
		Source: SourceRunfile,
		Name:   SourceRunfile,
		AMD64:  row.AMD64,
		ARM64:  row.ARM64,
		Family: p.packager(),
	}
}

// chooseRunfile chooses NVIDIA's installer, which is one file for one version.
func (p *plan) chooseRunfile() error {
	if len(p.catalog.Runfiles) == 0 {
		return refuse("internal error: the catalog has no runfiles")
	}

	p.repo = p.runfileRow()
	if !strings.Contains(p.spec.Version, ".") {
		return p.refuse("cannot choose a runfile: it is of one exact version, and the spec asks for none")
	}
	arch := p.repo.arch(p.machine.Arch)
	if arch == "" {
		return refuse(
			fmt.Sprintf("cannot install a runfile: NVIDIA publishes none for %s", p.machine.Arch),
			`write source = "auto" in [driver]`)
	}

	url := strings.NewReplacer("{arch}", arch, "{v}", p.spec.Version).Replace(p.catalog.Runfiles[0].URL)
	if mirror := p.spec.Repo.URL; mirror != "" {
		url = strings.TrimRight(mirror, "/") + "/" + path.Base(url)
	}
	if p.spec.Runfile.URL != "" {
		url = p.spec.Runfile.URL
	}

	p.choice.Source = SourceRunfile
	p.choice.Repo = Repository{URL: url, Arch: arch}
	return nil
}

// distro returns the name by which the catalog's rows call the machine's distribution: that of its
// repositories, whatever the driver's source is. "" if none is known.
func (p *plan) distro() string {
	rows, _ := p.catalog.repositories(p.machine)
	if len(rows) == 0 {
		return ""
	}
	return rows[0].Name
}

// packager returns the machine's packager, apt or dnf, which decides the names of the build tools;
// "" if neither is known.
func (p *plan) packager() string {
	if rows, _ := p.catalog.repositories(p.machine); len(rows) > 0 {
		return rows[0].Family
	}

	by := facts.OS{ID: p.machine.ID, Like: p.machine.Like}.Packager()
	if by.Foreign {
		return ""
	}
	return by.Name
}

// notInRepository says why the repository does not have a branch that gpuadm may choose, "" if it
// has. What an operator's own repository has, its lists say, wherever the names of the branch's
// packages are known: only a branch that the spec does not name goes by what is known of NVIDIA's.
func (p *plan) notInRepository(branch int, asked string) string {
	if p.spec.Repo.URL != "" && p.spec.Version != "" && p.knowsNames(branch) {
		return ""
	}
	return p.notAtVendors(branch, asked)
}

// knowsNames says whether the names of a branch's packages are known for the repository's system.
func (p *plan) knowsNames(branch int) bool {
	other := *p
	other.branch = branch
	_, known := other.packageSet()
	return known
}

// notAtVendors says why the vendor's repository does not have a branch, "" if it has.
func (p *plan) notAtVendors(branch int, asked string) string {
	row := p.repo
	switch {
	case row.onlyOneBranch() && branch != row.First:
		return fmt.Sprintf("cannot install driver %s from %s: it has branch %d only", asked, row, row.First)
	case row.First > 0 && branch < row.First:
		return fmt.Sprintf("cannot install driver %s from %s: no packages of branches before %d are known there", asked, row, row.First)
	case row.Last > 0 && branch > row.Last:
		return fmt.Sprintf("cannot install driver %s from %s: no packages of branches after %d are known there", asked, row, row.Last)
	}

	return ""
}
