// SPDX-License-Identifier: Apache-2.0

// Package repos builds signed package repositories for the lab's hosts: small packages with the
// names, versions, dependencies and maintainer scripts of NVIDIA's, made by the real tools of both
// formats, and what goes wrong with repositories beside them. They lie in the lab's cache.
//
//	h := lab.Boot(t, lab.Options{Dist: "bookworm", Repos: repos.Deb(t, repos.Recipe{})})
//	repos.AddApt(h)                                       // as a person would: keyring, sources, apt-get update
//	h.Must("apt-get", "install", "-y", "nvidia-open")     // a real apt, a real dpkg
//	repos.Show(h, repos.Vanished)                         // the same URL, without 580.95.05
//	repos.Fails(h, "after", "nvidia-persistenced")        // its postinst exits with 10 from now on
//	there, goOn := repos.Waits(h, "after", "libcuda1")    // …and this one waits: there() returns once it does
//
// A host sees one Variant of the repositories at a time, below At, with the paths they have on
// NVIDIA's servers.
package repos

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/listings"
)

// Recipe says of what to make the packages, where it can be chosen.
type Recipe struct {
	// NVML is a file to ship as libnvidia-ml.so.VERSION; "" for a library that only has a name.
	NVML string
	// CTK is a program to ship as nvidia-ctk; "" for one that only says its version.
	CTK string
}

// Variant is one state of the repositories.
type Variant string

const (
	Good       Variant = "good"
	Vanished   Variant = "vanished"   // the driver Gone, and the oldest toolkit, are not there any more
	Lagging    Variant = "lagging"    // a newer driver is there, its companions (fabric manager, …) not yet
	Expired    Variant = "expired"    // Release was valid until yesterday's year; for apt alone
	Tampered   Variant = "tampered"   // a signed file was changed afterwards
	WrongKey   Variant = "wrong-key"  // signed by a key that is not the published one
	Unsigned   Variant = "unsigned"   // no signature at all
	Mismatched Variant = "mismatched" // the index is not the one that Release has the hash of
	Corrupt    Variant = "corrupt"    // the package files do not have the hashes of the index
)

// At is where a host has the variant that it sees; CUDA and Toolkit are URLs of the repositories
// for Debian below it.
const (
	At      = "/srv/nvidia"
	Mirror  = "file://" + At // three slashes: librepo makes nonsense of one
	CUDA    = "compute/cuda/repos"
	Toolkit = "libnvidia-container/stable"
	// Key is the public key, armored; Keyring is the same for apt's signed-by.
	Key     = lab.RepoDir + "/key.asc"
	Keyring = lab.RepoDir + "/keyring.gpg"
)

//go:embed *.go module daemon
var source embed.FS

// place is where the repositories of a recipe lie: what is built depends on the recipe and this
// package alone.
func place(kind string, r Recipe) (string, error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return "", err
	}

	sum := sha256.New()
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := source.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		return err
	})
	fmt.Fprintf(sum, "%v", listings.All()) // maps are printed in order
	for _, name := range []string{r.NVML, r.CTK} {
		var text []byte
		if name != "" && err == nil {
			text, err = os.ReadFile(name)
		}
		fmt.Fprintf(sum, "\n%d\n%s", len(text), text)
	}

	if err != nil {
		return "", fmt.Errorf("cannot tell which repositories to take: %w", err)
	}
	return filepath.Join(cache, fmt.Sprintf("repos-%s-%x", kind, sum.Sum(nil)[:6])), nil
}

// Distros are those that there are repositories for, as the listings call them; -archive is the
// distribution's own archive.
func Distros() []string {
	return []string{
		"ubuntu2204", "ubuntu2404", "ubuntu2604", "debian12", "debian12-archive", "debian13-archive",
		"rhel8", "rhel9", "rhel10", "amzn2023", "azl3",
	}
}

// Build builds the repositories of a distribution unless they are there, and returns their folder
// for lab.Options.Repos.
func Build(ctx context.Context, distro string, r Recipe) (string, error) {
	if !slices.Contains(Distros(), distro) {
		return "", fmt.Errorf("cannot build repositories for %s: known are %s", distro, strings.Join(Distros(), ", "))
	}
	build := buildDnf
	if strings.HasPrefix(distro, "ubuntu") || strings.HasPrefix(distro, "debian") {
		build = buildApt
	}

	into, err := place(distro, r)
	if err != nil {
		return "", err
	}
	err = lab.Cached(into, func(into string) (err error) {
		scratch, err := os.MkdirTemp(filepath.Dir(into), ".repos-") // on the cache's file system, for links
		if err != nil {
			return fmt.Errorf("cannot make a scratch folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()

		in, err := makeParts(ctx, r, scratch)
		if err != nil {
			return err
		}
		return build(ctx, distro, in, scratch, into)
	})
	return into, err
}

// For is Build for a test.
func For(t testing.TB, distro string, r Recipe) string {
	t.Helper()
	lab.Asked(t)
	dir, err := Build(context.Background(), distro, r) // not the test's: others wait for the same
	lab.Have(t, err)
	return dir
}

// Deb is For Debian 12 and 13, which have the same packages.
func Deb(t testing.TB, r Recipe) string {
	t.Helper()
	return For(t, "debian12", r)
}

// RPM is For RHEL 9.
func RPM(t testing.TB, r Recipe) string {
	t.Helper()
	return For(t, "rhel9", r)
}
