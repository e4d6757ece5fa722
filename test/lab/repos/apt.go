// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"compress/gzip"
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

	"github.com/gpuadm/gpuadm/test/listings"
)

const debToolkit = Toolkit + "/deb/amd64"

// Archive is where an archive of a distribution lies below a variant.
const Archive = "archive"

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

// suite is what an archive calls a distribution's release.
func suite(distro string) string {
	suites := map[string]string{
		"debian12": "bookworm", "debian13": "trixie",
		"ubuntu2204": "jammy", "ubuntu2404": "noble", "ubuntu2604": "resolute",
	}
	return suites[distro]
}

// aptPools are the packages of a distribution by where they lie below a variant: flat repositories,
// and pools of an archive.
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

// ubuntuPool are the packages of Ubuntu's own archive. others are in its component main.
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

// once leaves out packages of which there is one of that version before.
func once(list []Package) []Package {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(p Package) bool {
		key := p.Name + " " + p.Version
		defer func() { seen[key] = true }()
		return seen[key]
	})
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
			a := archive{
				dir:   filepath.Join(into, string(Good), sub),
				suite: suite(strings.TrimPrefix(sub, Archive+"/")),
				key:   right,
			}
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
	// apt, and servers, take a file that is not newer than the one they know for the same one: so
	// all have their time.
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

// debianArchive are the driver packages of all pockets of Debian's archive, with everything the
// listings say of them, and what they depend on without being listed: a package of which others
// need one version exists in it.
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

// precompiled are the kernel modules that Ubuntu has signed for Kernel: of every server branch that
// is not transitional, the newest build needs the newest libraries. Source: the page of
// linux-modules-nvidia-580-server-open-generic-7.0, in the listings.
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
	for field, value := range map[string]string{
		"Origin":     origin,
		"Label":      origin,
		"Suite":      a.suite,
		"Codename":   a.suite,
		"Components": strings.Join(names, " "),
	} {
		args = append([]string{"-o", "APT::FTPArchive::Release::" + field + "=" + value}, args...)
	}
	release, err := command(ctx, dists, "apt-ftparchive", args...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dists, "Release"), release, 0o644); err != nil {
		return err
	}
	signed := filepath.Join(dists, "InRelease")
	_, err = a.key.gpg(ctx, "--clearsign", "--output", signed, filepath.Join(dists, "Release"))
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
		os.WriteFile(filepath.Join(dir, "Packages"), text, 0o644),
		os.WriteFile(filepath.Join(dir, "Packages.gz"), packed.Bytes(), 0o644))
}

// Apt is what apt's repositories of a distribution have, by where they lie, for a simulated apt: no
// program of it can be run.
func Apt(distro string) (map[string][]Package, error) { return parts{}.aptPools(distro) }
