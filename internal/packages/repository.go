// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A Repository is a source of packages in addition to the distribution's own.
type Repository struct {
	ID          string // cuda, nvidia-container-toolkit: it is part of the names of gpuadm's files
	About       string // NVIDIA's CUDA repository for debian12
	URL         string // http, https or file; apt's are flat; "" for the distribution's own, with Pins only
	Key         string // URL or absolute path of the public key
	Fingerprint string // of the key; or "sha256:" and the digest of its file: see things.Key
	Pins        []Pin  // which packages apt may install from it, and in which version
	Signed      Signed // what of a dnf repository the key signs
	Whole       bool   // gpuadm mirror wrote it: it has all dependencies, and no module streams
}

// Signed says what a repository's key signs. No value says "nothing".
type Signed string

// NVIDIA signs both in its CUDA repositories (SIGNATURES.md in NVIDIA/cuda-repo-management), and
// only the metadata in the container toolkit's (its own .repo file says gpgcheck=0,
// repo_gpgcheck=1), which holds the packages' checksums.
const (
	SignedBoth     Signed = "" // packages and metadata; apt's always sign the metadata, and so all
	SignedMetadata Signed = "metadata"
	SignedPackages Signed = "packages" // for mirrors that write their own metadata
)

// SignedAs reads the spec's value; auto replaces an empty value.
func SignedAs(value string, auto Signed) Signed {
	switch value {
	case "both":
		return SignedBoth
	case string(SignedMetadata), string(SignedPackages):
		return Signed(value)
	}

	return auto
}

// A Pin is a record of apt_preferences(5).
type Pin struct {
	Names    []string
	Version  string // that it keeps the packages at: 580.95.05, or a beginning, 580.*; "" for none
	Pin      string // version 580.95.05-*, release o=Ubuntu
	Priority int
}

// KeepAt keeps packages at a version with any revision, above 1000 so that a downgrade is made too.
// A pin fails open when the version is gone, so it is only a second safeguard: gpuadm installs
// exact versions, and holds them.
func KeepAt(version string, names ...string) Pin {
	return Pin{
		Names:    names,
		Version:  version,
		Pin:      "version " + glob(version),
		Priority: 1001,
	}
}

// Repositories wants the machine to know these repositories, to trust the key of each for that
// repository alone, and to have current lists. packager is facts.Packager's name.
func (r *Reading) Repositories(packager string, repos []Repository, via host.Via) ([]converge.Want, error) {
	p := r.Named(packager)
	switch {
	case p != nil:
		return p.Repositories(r, repos, via)
	case len(repos) > 0:
		return nil, Unmanaged("install", packager)
	}

	return nil, nil
}

// Contents returns gpuadm's files about sources and, for apt, versions: if a version is new in the
// spec, it may be newer than the last reading of the lists.
func (r *Reading) Contents(packager string, repos []Repository, via host.Via) map[string][]byte {
	if p := r.Named(packager); p != nil {
		return p.Contents(repos, via)
	}
	return nil
}

// Upgrades wants automatic upgrades to leave these packages alone.
func (r *Reading) Upgrades(packager string, names []string, needrestart bool) []converge.Want {
	if p := r.Named(packager); p != nil {
		return p.Upgrades(names, needrestart)
	}
	return nil
}

// Header is the first line of gpuadm's files about sources.
const Header = "# Written by gpuadm at each apply.\n"

// PinRecords writes pins as records of apt_preferences(5).
func PinRecords(pins []Pin) (text string) {
	for _, p := range pins {
		names := strings.Join(p.Names, " ")
		text += fmt.Sprintf("\nPackage: %s\nPin: %s\nPin-Priority: %d\n", names, p.Pin, p.Priority)
	}
	return text
}

// glob returns a pattern for a driver's version with any revision of the packager: 580.95.05-1,
// 580.95.05-0ubuntu1.
func glob(version string) string {
	if strings.HasSuffix(version, "*") {
		return version
	}
	return version + "-*"
}
