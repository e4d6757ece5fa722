// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const debToolkit = Toolkit + "/deb/amd64"

// debCUDA is where NVIDIA's repository for a distribution lies below a variant: a flat one.
func debCUDA(distro string) string { return CUDA + "/" + distro + "/x86_64" }

// debVariants are the states that apt's repositories can be shown in. Those of other distributions
// than Debian 12 are good.
func debVariants(distro string) []Variant {
	if distro != "debian12" {
		return []Variant{Good}
	}
	return []Variant{Good, Vanished, Lagging, Expired, Tampered, WrongKey, Unsigned, Mismatched, Corrupt}
}

// buildApt builds all variants of apt's repositories: VARIANT/compute/cuda/repos/debian12/x86_64
// and so on.
func buildApt(ctx context.Context, distro string, in parts, scratch, into string) error {
	right, drop, err := newKey(ctx, "cudatools")
	if err != nil {
		return err
	}
	defer drop()
	wrong, dropWrong, err := newKey(ctx, "another owner")
	if err != nil {
		return err
	}
	defer dropWrong()
	err = right.publish(ctx, filepath.Join(into, "key.asc"), filepath.Join(into, "keyring.gpg"))
	if err != nil {
		return err
	}

	pools, err := in.aptPools(distro)
	if err != nil {
		return err
	}
	b := aptBuilder{
		distro: distro,
		into:   into,
		right:  right,
		wrong:  wrong,
	}
	for place, list := range pools {
		pool := filepath.Join(scratch, strings.ReplaceAll(place, "/", "-"))
		if err := os.MkdirAll(pool, 0o755); err != nil {
			return fmt.Errorf("cannot make a folder of packages: %w", err)
		}
		if err := buildDebs(ctx, list, scratch, pool); err != nil {
			return err
		}
		if err := b.build(ctx, place, pool, list); err != nil {
			return err
		}
	}

	if distro == "debian12" { // Debian 13 has the same packages
		for _, variant := range debVariants(distro) {
			link := filepath.Join(into, string(variant), CUDA, "debian13")
			if err := os.Symlink("debian12", link); err != nil {
				return err
			}
		}
	}

	return publishKey(into, debVariants(distro))
}

// aptBuilder makes repositories of pools of packages.
type aptBuilder struct {
	distro string
	into   string
	right  gpgKey
	wrong  gpgKey // for WrongKey
}

// build makes the archive or the repositories, in all variants, of one pool.
func (b aptBuilder) build(ctx context.Context, place, pool string, list []Package) error {
	distro, isArchive := strings.CutPrefix(place, Archive+"/")
	if isArchive {
		a := archive{
			dir:   filepath.Join(b.into, string(Good), place),
			suite: suite(distro),
			key:   b.right,
		}
		if err := a.build(ctx, pool, list); err != nil {
			return fmt.Errorf("cannot build the archive %s: %w", place, err)
		}
		return nil
	}

	index, err := command(ctx, pool, "apt-ftparchive", "packages", ".")
	if err != nil {
		return err
	}
	for _, variant := range debVariants(b.distro) {
		r := aptRepo{
			dir:     filepath.Join(b.into, string(variant), place),
			variant: variant,
			key:     b.right,
		}
		if variant == WrongKey {
			r.key = b.wrong
		}
		if err := r.build(ctx, pool, string(index)); err != nil {
			return fmt.Errorf("cannot build the repository %s %s: %w", variant, place, err)
		}
	}

	return nil
}

// aptRepo is one repository in one state.
type aptRepo struct {
	dir     string
	variant Variant
	key     gpgKey
}

func (r aptRepo) build(ctx context.Context, pool, index string) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.fill(pool); err != nil {
		return err
	}
	if err := writeIndex(r.dir, []byte(chosen(index, r.variant))); err != nil {
		return err
	}

	made := r.made()
	if err := r.release(ctx, made); err != nil {
		return err
	}
	if err := r.spoil(index); err != nil {
		return err
	}
	for _, name := range []string{"InRelease", "Release", "Release.gpg", "Packages", "Packages.gz"} {
		err := os.Chtimes(r.path(name), made, made)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}

	return nil
}

// made returns the time at which the variant was made. apt, and servers, keep a file that they know
// if another one is not newer: so each variant has its own time.
func (r aptRepo) made() time.Time {
	hours := slices.Index(debVariants("debian12"), r.variant)
	yesterday := time.Now().Add(-24 * time.Hour)
	return yesterday.Add(time.Duration(hours) * time.Hour).UTC()
}

var releaseDate = regexp.MustCompile(`(?m)^Date: .*`)

// release writes Release and its signatures.
func (r aptRepo) release(ctx context.Context, made time.Time) error {
	release, err := command(ctx, r.dir, "apt-ftparchive",
		"-o", "APT::FTPArchive::Release::Origin=NVIDIA",
		"-o", "APT::FTPArchive::Release::Label=NVIDIA CUDA",
		"release", ".")
	if err != nil {
		return err
	}
	date := "Date: " + made.Format(http.TimeFormat)
	release = releaseDate.ReplaceAll(release, []byte(date))
	if r.variant == Expired {
		release = append([]byte("Valid-Until: Thu, 01 Jan 2026 00:00:00 UTC\n"), release...)
	}
	if err := os.WriteFile(r.path("Release"), release, 0o644); err != nil {
		return err
	}

	if r.variant == Unsigned {
		return nil
	}
	_, err = r.key.gpg(ctx, "--clearsign", "--output", r.path("InRelease"), r.path("Release"))
	if err != nil {
		return err
	}
	_, err = r.key.gpg(ctx, "--armor", "--detach-sign", "--output", r.path("Release.gpg"), r.path("Release"))
	return err
}

func (r aptRepo) path(name string) string { return filepath.Join(r.dir, name) }

// fill puts the packages into the repository: links to those of the pool.
func (r aptRepo) fill(pool string) error {
	debs, err := filepath.Glob(filepath.Join(pool, "*.deb"))
	for _, deb := range debs {
		place := r.path(filepath.Base(deb))
		put := os.Link
		if r.variant == Corrupt {
			put = copyCorrupt
		}
		err = errors.Join(err, put(deb, place))
	}

	return err
}

// copyCorrupt copies a file with one bit changed.
func copyCorrupt(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	text[len(text)/2] ^= 1
	return os.WriteFile(to, text, 0o644)
}

// spoil changes what is signed already.
func (r aptRepo) spoil(index string) error {
	switch r.variant {
	case Tampered:
		for _, name := range []string{"InRelease", "Release"} {
			text, err := os.ReadFile(r.path(name))
			if err != nil {
				return err
			}
			text = bytes.Replace(text, []byte("NVIDIA CUDA"), []byte("NVIDIA CODA"), 1)
			if err := os.WriteFile(r.path(name), text, 0o644); err != nil {
				return err
			}
		}
	case Mismatched:
		other := strings.ReplaceAll(index, "Section: libs", "Section: libz")
		return writeIndex(r.dir, []byte(other))
	}
	return nil
}

// chosen returns the stanzas of an index that the variant has.
func chosen(index string, variant Variant) string {
	var kept []string
	for stanza := range strings.SplitSeq(strings.TrimSpace(index), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(stanza) {
			key, value, isField := strings.Cut(strings.TrimSpace(line), ": ")
			if isField {
				fields[key] = value
			}
		}

		if !variant.lacks(fields["Package"], upstream(fields["Version"])) {
			kept = append(kept, stanza)
		}
	}

	return strings.Join(kept, "\n\n") + "\n"
}

// lacks says whether a variant does not have a package in a version.
func (v Variant) lacks(name, version string) bool {
	switch v {
	case Vanished:
		return version == Gone || version == Toolkits()[0]
	case Lagging:
		companions := []string{"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}
		return version == lags && slices.Contains(companions, name)
	}
	return false
}
