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

// offers says whether the row is for an os-release's ID and VERSION_ID.
func (r repositoryRow) offers(id, version string) bool {
	return slices.Contains(r.IDs, id) && (r.Version == "*" || version == r.Version || strings.HasPrefix(version, r.Version+"."))
}

// repositories returns the rows for the machine's distribution, or else for the first distribution
// in its ID_LIKE, which like then names.
func (c Catalog) repositories(m hardware.Machine) (rows []repositoryRow, like string) {
	for i, id := range append([]string{m.ID}, m.Like...) {
		for _, r := range c.Repositories {
			if r.offers(id, m.Version) && (i == 0 || r.Version != "*") {
				rows = append(rows, r)
			}
		}
		if len(rows) > 0 {
			if i > 0 {
				like = id
			}
			return rows, like
		}
	}
	return nil, ""
}

// from chooses the repository of the packages. It never mixes sources, since some of their packages
// replace each other.
func (p *plan) from() error {
	if p.m.Arch == "" {
		return refuse("cannot choose a driver: cannot determine the CPU architecture: there is no dynamic loader, no shell and no packaging system",
			"make sure that the folder is the root of an image")
	}
	if p.d.Source == SourceRunfile {
		return p.fromRunfile()
	}
	rows, like := p.c.repositories(p.m)
	if len(rows) == 0 {
		return refuse(fmt.Sprintf("cannot install a driver on %s: no repository is known for it", p.system()),
			`write source = "runfile" and a version in [driver], or owner = "other" if another tool installs the driver`)
	}
	r, err := p.pick(rows)
	if err != nil {
		return err
	}
	p.repo = r
	if like != "" {
		p.warn("%s is like %s, says its os-release: the packages of %s are taken", p.system(), like, r.Name)
	}
	p.choice.Source = r.Source
	p.choice.Repo = Repository{Distro: r.Name, Arch: r.arch(p.m.Arch), Component: r.Component, Needs: slices.Clone(r.Needs)}
	return p.trust()
}

func (p *plan) system() string {
	return strings.TrimSpace(p.m.ID + " " + p.m.Version)
}

// pick takes the row that the spec's source asks for; auto is NVIDIA's, then the distribution's.
func (p *plan) pick(rows []repositoryRow) (repositoryRow, error) {
	var unfit, refused []repositoryRow
	for _, vendor := range []bool{true, false} {
		for _, r := range rows {
			if vendor != (r.Source == SourceNVIDIA) {
				continue
			}
			switch p.d.Source {
			case "nvidia":
				if !vendor {
					continue
				}
			case "distro":
				if vendor {
					continue
				}
			}
			if r.Refused != "" {
				refused = append(refused, r)
				continue
			}
			if r.arch(p.m.Arch) == "" {
				unfit = append(unfit, r)
				continue
			}
			if len(unfit) > 0 {
				p.warn("%s has no packages for %s: those of %s are taken", unfit[0], p.m.Arch, r)
			}
			return r, nil
		}
	}
	if len(refused) > 0 && len(unfit) == 0 {
		p.repo = refused[0]
		return p.repo, p.refuse(fmt.Sprintf("cannot install from %s: %s", p.repo, p.repo.Refused),
			`or write owner = "other" in [driver], and install it yourself: gpuadm then verifies it`)
	}
	if len(unfit) > 0 {
		why := "it has no packages for " + p.m.Arch
		if unfit[0].Source == SourceNVIDIA {
			why = "NVIDIA publishes no packages for " + p.m.Arch + " there"
		}
		p.repo = unfit[0]
		return repositoryRow{}, p.refuse(fmt.Sprintf("cannot install from %s: %s", unfit[0], why))
	}
	where := "NVIDIA has no repository for it"
	if p.d.Source == "distro" {
		where = "its own archive has none that is known"
	}
	return repositoryRow{}, refuse(fmt.Sprintf("cannot install a driver on %s from source = %q: %s", p.system(), p.d.Source, where),
		`write source = "auto" in [driver]`)
}

// trust settles URL and key: those of the spec's mirror, or the vendor's with a fingerprint that is
// known.
func (p *plan) trust() error {
	repo := &p.choice.Repo
	if mirror := p.d.Repo; mirror.URL != "" {
		repo.URL, repo.KeyURL, repo.Fingerprint, repo.Mirror, repo.Signed = mirror.URL, mirror.Key, mirror.Fingerprint, true, mirror.Signature
		return nil
	}
	if p.repo.URL == "" {
		return nil // the distribution's own repository, which brings its keys
	}
	repo.URL = strings.ReplaceAll(strings.ReplaceAll(p.repo.URL, "{arch}", repo.Arch), "{version}", p.m.Version)
	if p.repo.Key == "" {
		return refuse(fmt.Sprintf("cannot trust %s: which key signs it is not known to this release", p.repo),
			fmt.Sprintf(`find the key in %s, compare its fingerprint with a fingerprint that NVIDIA publishes, save the key in a file, and write url = %[1]q, key = that file and fingerprint in [driver.repo]`, repo.URL))
	}
	repo.KeyURL = repo.URL + p.repo.Key + ".pub"
	for _, k := range p.c.Keys {
		switch {
		case k.Name != p.repo.Key:
		case k.Fingerprint != "":
			repo.Fingerprint = k.Fingerprint
		default:
			repo.Fingerprint = "sha256:" + k.SHA256
		}
	}
	return nil
}

// runfileRow is NVIDIA's installer as a repository.
func (p *plan) runfileRow() repositoryRow {
	row := p.c.Runfiles[0]
	return repositoryRow{Source: SourceRunfile, Name: SourceRunfile, AMD64: row.AMD64, ARM64: row.ARM64, Family: p.family()}
}

// fromRunfile settles NVIDIA's installer, which is one file for one version.
func (p *plan) fromRunfile() error {
	if len(p.c.Runfiles) == 0 {
		return refuse("internal error: the catalog has no runfiles")
	}
	row := p.c.Runfiles[0]
	p.repo = p.runfileRow()
	if !strings.Contains(p.d.Version, ".") {
		return p.refuse("cannot choose a runfile: it is of one exact version, and the spec asks for none")
	}
	arch := p.repo.arch(p.m.Arch)
	if arch == "" {
		return refuse(fmt.Sprintf("cannot install a runfile: NVIDIA publishes none for %s", p.m.Arch), `write source = "auto" in [driver]`)
	}
	url := strings.NewReplacer("{arch}", arch, "{v}", p.d.Version).Replace(row.URL)
	if mirror := p.d.Repo.URL; mirror != "" {
		url = strings.TrimRight(mirror, "/") + "/" + path.Base(url)
	}
	if p.d.Runfile.URL != "" {
		url = p.d.Runfile.URL
	}
	p.choice.Source = SourceRunfile
	p.choice.Repo = Repository{URL: url, Arch: arch}
	return nil
}

// family returns the packager, apt or dnf, which decides the names of the build tools; "" if
// neither is known.
func (p *plan) family() string {
	if rows, _ := p.c.repositories(p.m); len(rows) > 0 {
		return rows[0].Family
	}
	if by := (facts.OS{ID: p.m.ID, Like: p.m.Like}).Packager(); !by.Foreign {
		return by.Name
	}
	return ""
}

// published says why the repository does not have a branch, "" if it does.
func (p *plan) published(branch int, asked string) string {
	r := p.repo
	switch {
	case r.First > 0 && r.First == r.Last && branch != r.First:
		return fmt.Sprintf("cannot install driver %s from %s: it has branch %d only", asked, r, r.First)
	case r.First > 0 && branch < r.First:
		return fmt.Sprintf("cannot install driver %s from %s: no packages of branches before %d are known there", asked, r, r.First)
	case r.Last > 0 && branch > r.Last:
		return fmt.Sprintf("cannot install driver %s from %s: no packages of branches after %d are known there", asked, r, r.Last)
	}
	return ""
}
