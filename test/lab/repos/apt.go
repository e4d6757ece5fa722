// SPDX-FileCopyrightText: The gpuadm authors
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

// Archive is where an archive of a distribution lies below a variant.
const Archive = "archive"

// debCUDA is where NVIDIA's repository for a distribution lies below a variant: a flat one.
func debCUDA(distro string) string { return CUDA + "/" + distro + "/x86_64" }

// debVariants are the states that apt's repositories can be shown in. Those of other distributions than Debian 12 are good.
func debVariants(distro string) []Variant {
	if distro != "debian12" {
		return []Variant{Good}
	}
	return []Variant{Good, Vanished, Lagging, Expired, Tampered, WrongKey, Unsigned, Mismatched, Corrupt}
}

// suite is what an archive calls a distribution's release.
func suite(distro string) string {
	return map[string]string{
		"debian12": "bookworm", "debian13": "trixie", "ubuntu2204": "jammy", "ubuntu2404": "noble", "ubuntu2604": "resolute",
	}[distro]
}

// aptPools are the packages of a distribution by where they lie below a variant: flat repositories, and pools of an archive.
func (in parts) aptPools(distro string) (map[string][]Package, error) {
	archive, ofArchive := strings.CutSuffix(distro, "-archive")
	if ofArchive {
		list, err := in.debianArchive(archive)
		return map[string][]Package{Archive + "/" + archive: list}, err
	}
	editions := debianNVIDIA()
	pools := map[string][]Package{debCUDA(distro): debOthers()}
	if strings.HasPrefix(distro, "ubuntu") {
		editions = ubuntuNVIDIA(distro)
		main := debOthers()[1:]
		for i := range main {
			main[i].Component = "main"
		}
		pools = map[string][]Package{debCUDA(distro): debOthers()[:1], Archive + "/" + distro: append(main, precompiled(ubuntuArchive(distro))...)}
		for _, e := range ubuntuArchive(distro) {
			list, err := in.aptPackages(e)
			if err != nil {
				return nil, err
			}
			pools[Archive+"/"+distro] = append(pools[Archive+"/"+distro], list...)
		}
	}
	for _, e := range editions {
		list, err := in.aptPackages(e)
		if err != nil {
			return nil, err
		}
		pools[debCUDA(distro)] = append(pools[debCUDA(distro)], list...)
	}
	for _, v := range Toolkits() {
		pools[debToolkit] = append(pools[debToolkit], in.debToolkit(v)...)
	}
	for at := range pools {
		pools[at] = once(pools[at])
	}
	return pools, nil
}

// once leaves out packages of which there is one of that version before.
func once(list []Package) []Package {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(p Package) bool {
		key := p.Name + " " + p.Version
		defer func() { seen[key] = true }()
		return seen[key]
	})
}

// buildApt builds all variants of apt's repositories: VARIANT/compute/cuda/repos/debian12/x86_64 and so on.
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
	if err := right.publish(ctx, filepath.Join(into, "key.asc"), filepath.Join(into, "keyring.gpg")); err != nil {
		return err
	}
	lists, err := in.aptPools(distro)
	if err != nil {
		return err
	}
	for sub, list := range lists {
		pool := filepath.Join(scratch, strings.ReplaceAll(sub, "/", "-"))
		if err := os.MkdirAll(pool, 0o755); err != nil {
			return fmt.Errorf("cannot make a folder of packages: %w", err)
		}
		if err := buildDebs(ctx, list, scratch, pool); err != nil {
			return err
		}
		if strings.HasPrefix(sub, Archive+"/") {
			a := archive{dir: filepath.Join(into, string(Good), sub), suite: suite(strings.TrimPrefix(sub, Archive+"/")), key: right}
			if err := a.build(ctx, pool, list); err != nil {
				return fmt.Errorf("cannot build the archive %s: %w", sub, err)
			}
			continue
		}
		index, err := command(ctx, pool, "apt-ftparchive", "packages", ".")
		if err != nil {
			return err
		}
		for _, variant := range debVariants(distro) {
			key := right
			if variant == WrongKey {
				key = wrong
			}
			r := aptRepo{dir: filepath.Join(into, string(variant), sub), variant: variant, key: key}
			if err := r.build(ctx, pool, string(index)); err != nil {
				return fmt.Errorf("cannot build the repository %s %s: %w", variant, sub, err)
			}
		}
	}
	if distro == "debian12" { // the two have the same packages
		for _, variant := range debVariants(distro) {
			if err := os.Symlink("debian12", filepath.Join(into, string(variant), CUDA, "debian13")); err != nil {
				return err
			}
		}
	}
	return publishKey(into, debVariants(distro))
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
	release, err := command(ctx, r.dir, "apt-ftparchive", "-o", "APT::FTPArchive::Release::Origin=NVIDIA",
		"-o", "APT::FTPArchive::Release::Label=NVIDIA CUDA", "release", ".")
	if err != nil {
		return err
	}
	// apt, and servers, take a file that is not newer than the one they know for the same one: so all have their time.
	made := time.Now().Add(-24 * time.Hour).Add(time.Duration(slices.Index(debVariants("debian12"), r.variant)) * time.Hour).UTC()
	release = regexp.MustCompile(`(?m)^Date: .*`).ReplaceAll(release, []byte("Date: "+made.Format(http.TimeFormat)))
	if r.variant == Expired {
		release = append([]byte("Valid-Until: Thu, 01 Jan 2026 00:00:00 UTC\n"), release...)
	}
	if err := os.WriteFile(r.path("Release"), release, 0o644); err != nil {
		return err
	}
	if r.variant != Unsigned {
		if _, err := r.key.gpg(ctx, "--clearsign", "--output", r.path("InRelease"), r.path("Release")); err != nil {
			return err
		}
		if _, err := r.key.gpg(ctx, "--armor", "--detach-sign", "--output", r.path("Release.gpg"), r.path("Release")); err != nil {
			return err
		}
	}
	if err := r.spoil(index); err != nil {
		return err
	}
	for _, name := range []string{"InRelease", "Release", "Release.gpg", "Packages", "Packages.gz"} {
		if err := os.Chtimes(r.path(name), made, made); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (r aptRepo) path(name string) string { return filepath.Join(r.dir, name) }

// fill puts the packages into the repository: links to those of the pool.
func (r aptRepo) fill(pool string) error {
	debs, err := filepath.Glob(filepath.Join(pool, "*.deb"))
	for _, deb := range debs {
		place := r.path(filepath.Base(deb))
		if r.variant != Corrupt {
			err = errors.Join(err, os.Link(deb, place))
			continue
		}
		text, rerr := os.ReadFile(deb)
		if rerr == nil {
			text[len(text)/2] ^= 1
			rerr = os.WriteFile(place, text, 0o644)
		}
		err = errors.Join(err, rerr)
	}
	return err
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
			if err := os.WriteFile(r.path(name), bytes.Replace(text, []byte("NVIDIA CUDA"), []byte("NVIDIA CODA"), 1), 0o644); err != nil {
				return err
			}
		}
	case Mismatched:
		return writeIndex(r.dir, []byte(strings.ReplaceAll(index, "Section: libs", "Section: libz")))
	}
	return nil
}

// chosen takes from an index what the variant has.
func chosen(index string, variant Variant) string {
	companions := []string{"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}
	var kept []string
	for stanza := range strings.SplitSeq(strings.TrimSpace(index), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(stanza) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
				fields[key] = value
			}
		}
		version := upstream(fields["Version"])
		switch {
		case variant == Vanished && (version == Gone || version == Toolkits()[0]):
		case variant == Lagging && version == lags && slices.Contains(companions, fields["Package"]):
		default:
			kept = append(kept, stanza)
		}
	}
	return strings.Join(kept, "\n\n") + "\n"
}
