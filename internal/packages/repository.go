// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Repository is where packages come from beside the distribution's own.
type Repository struct {
	ID          string // cuda, nvidia-container-toolkit: what our files about it are named after
	About       string // NVIDIA's CUDA repository for debian12
	URL         string // http, https or file; a flat apt repository, or a dnf one; "" for the distribution's own, with Pins only
	Key         string // URL or absolute path of the public key
	Fingerprint string // of the key; or "sha256:" and the digest of its file: see things.Key
	Pins        []Pin  // what may come from it, and in which version
	Signed      Signed // what of a dnf repository the key signs
	Mixed       bool   // its owner chose the packages: it may have kernel headers too
	Whole       bool   // gpuadm mirror wrote it: it has all that its packages depend on, and no module streams
}

// Signed says what a repository's key signs. There is no word for nothing.
type Signed string

// NVIDIA signs both in its CUDA repositories (SIGNATURES.md in NVIDIA/cuda-repo-management), and only the metadata in
// the container toolkit's (its own .repo file says gpgcheck=0, repo_gpgcheck=1), which holds the packages' checksums.
const (
	SignedBoth     Signed = "" // packages and metadata; apt's always sign the metadata, and so all
	SignedMetadata Signed = "metadata"
	SignedPackages Signed = "packages" // for mirrors that write their own metadata
)

// SignedAs reads what a spec says of it; auto is for what it leaves open.
func SignedAs(said string, auto Signed) Signed {
	switch said {
	case "both":
		return SignedBoth
	case "metadata":
		return SignedMetadata
	case "packages":
		return SignedPackages
	}
	return auto
}

// A Pin is a record of apt_preferences(5).
type Pin struct {
	Names    []string
	Version  string // that it keeps the packages at: 580.95.05, or a beginning of one that ends in ".*": 580.*; "" for none
	Pin      string // version 580.95.05-*, release o=Ubuntu
	Priority int
}

// KeepAt keeps packages at a version with any revision, above 1000 so that a downgrade is made too. It fails open where the
// version is gone, so it is a second line: what installs names every version, and holds it.
func KeepAt(version string, names ...string) Pin {
	return Pin{Names: names, Version: version, Pin: "version " + glob(version), Priority: 1001}
}

// Repositories wants the machine to know these repositories, to trust each one's key for that repository alone, and to
// have current lists of what they hold. packager is what Detect returned.
func (r *Reading) Repositories(packager string, repos []Repository, via host.Via) ([]converge.Want, error) {
	p := r.named(packager)
	if p == nil && len(repos) > 0 {
		return nil, &trouble.Error{
			What: "cannot install packages: neither dpkg nor rpm manages this machine",
			Try:  []string{`set owner = "other" in [driver] if another tool installs the driver`},
		}
	} else if p == nil {
		return nil, nil
	}
	return p.Repositories(r, repos, via)
}

// Contents are our files that say where packages come from, and for apt in which version: a version that the spec asks for
// since today may have come since the lists were last read.
func (r *Reading) Contents(packager string, repos []Repository, via host.Via) map[string][]byte {
	if p := r.named(packager); p != nil {
		return p.Contents(repos, via)
	}
	return nil
}

// Upgrades wants automatic upgrades to leave these packages alone.
func (r *Reading) Upgrades(packager string, names []string, needrestart bool) []converge.Want {
	if p := r.named(packager); p != nil {
		return p.Upgrades(names, needrestart)
	}
	return nil
}

// Leftovers names what earlier instructions for installing drivers and toolkits have left in the configuration of packagers,
// and what may get in the way. Nothing of it is touched: another user may count on it.
func (r *Reading) Leftovers(v host.View) (found []string) {
	for _, p := range r.packagers {
		found = append(found, p.Leftovers(v)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

const Header = "# Written by gpuadm at each apply.\n"

func Records(pins []Pin) (text string) {
	for _, p := range pins {
		text += fmt.Sprintf("\nPackage: %s\nPin: %s\nPin-Priority: %d\n", strings.Join(p.Names, " "), p.Pin, p.Priority)
	}
	return text
}

// glob matches a driver's version with any revision of the packager behind it: 580.95.05-1, 580.95.05-0ubuntu1.
func glob(version string) string {
	if strings.HasSuffix(version, "*") {
		return version
	}
	return version + "-*"
}

// A Place is where a file says that packages are.
type Place struct{ File, URL string }

// LeftAt names what earlier instructions for NVIDIA's packages have left among places; twice says what goes wrong where two
// files name the same one.
func LeftAt(places []Place, twice string) (found []string) {
	by := map[string][]string{} // URL → files
	for _, p := range places {
		url := strings.TrimSuffix(p.URL, "/")
		if strings.Contains(url, "nvidia.github.io/nvidia-docker") {
			found = append(found, p.File+": nvidia-docker's repository is no longer kept; its packages hide the toolkit's")
		}
		if (strings.Contains(url, "download.nvidia.c") || strings.Contains(url, "nvidia.github.io/")) && !slices.Contains(by[url], p.File) {
			by[url] = append(by[url], p.File)
		}
	}
	for url, files := range by {
		if len(files) > 1 {
			found = append(found, fmt.Sprintf("%s: each names %s; %s", strings.Join(files, ", "), url, twice))
		}
	}
	return found
}
