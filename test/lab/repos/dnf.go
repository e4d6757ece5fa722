// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/lab"
)

const rpmToolkit = Toolkit + "/rpm/x86_64"

// rpmCUDA is where NVIDIA's repository for a distribution lies below a variant.
func rpmCUDA(distro string) string { return CUDA + "/" + distro + "/x86_64" }

// rpmVariants are the states that dnf's repositories can be shown in: repomd.xml has no end of
// validity. Those of other distributions than RHEL 9 are good.
func rpmVariants(distro string) []Variant {
	if distro != "rhel9" {
		return []Variant{Good}
	}
	return []Variant{Good, Vanished, Lagging, Tampered, WrongKey, Unsigned, Mismatched, Corrupt}
}

// streamed tells whether the repository has module streams: RHEL 10's and Azure Linux's have none.
func streamed(distro string) bool { return distro != "rhel10" && distro != "azl3" }

// buildDnf builds all variants of dnf's repositories, by the programs of a RHEL-like root
// filesystem.
func buildDnf(ctx context.Context, distro string, in parts, scratch, into string) error {
	layers, err := lab.Rootfs(lab.RHELish)
	if err != nil {
		return err
	}
	upper := filepath.Join(scratch, "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	err = lab.InChroot(layers, upper, func(c lab.Chroot) error {
		return rpmMaker{in, c, distro}.make(ctx)
	})
	if err != nil {
		return err
	}
	made, err := os.ReadDir(filepath.Join(upper, "made"))
	for _, e := range made {
		err = errors.Join(err, os.Rename(filepath.Join(upper, "made", e.Name()), filepath.Join(into, e.Name())))
	}
	if err != nil {
		return err
	}
	return publishKey(into, rpmVariants(distro))
}

// rpmMaker makes repositories in a chroot's folder /made.
type rpmMaker struct {
	parts
	c      lab.Chroot
	distro string
}

// The two keys' homes in the chroot.
const (
	rightKey = "/root/right"
	wrongKey = "/root/wrong"
)

func (m rpmMaker) run(ctx context.Context, argv ...string) error {
	_, err := m.c.Run(ctx, []string{"GNUPGHOME=" + rightKey}, argv...)
	return err
}

func (m rpmMaker) make(ctx context.Context) (err error) {
	defer func() {
		for _, home := range []string{rightKey, wrongKey} { // agents would keep the chroot's mounts
			_, _ = m.c.Run(context.WithoutCancel(ctx), nil, "gpgconf", "--homedir", home, "--kill", "all")
		}
	}()
	if err := m.newKey(ctx, rightKey, "cudatools"); err != nil {
		return err
	}
	if err := m.newKey(ctx, wrongKey, "another owner"); err != nil {
		return err
	}

	for _, dir := range []string{"/made", "/rpms"} {
		if err := os.MkdirAll(m.at(dir), 0o755); err != nil {
			return err
		}
	}

	if err := m.run(ctx, "gpg", "--batch", "--armor", "--output", "/made/key.asc", "--export"); err != nil {
		return err
	}

	list, err := m.packages(ctx)
	if err != nil {
		return err
	}
	for _, sub := range []string{rpmCUDA(m.distro), rpmToolkit} {
		for _, variant := range rpmVariants(m.distro) {
			if err := m.repository(ctx, variant, sub, list); err != nil {
				return fmt.Errorf("cannot build the repository %s %s: %w", variant, sub, err)
			}
		}
	}

	return nil
}

// newKey makes a key pair in a home of the chroot.
func (m rpmMaker) newKey(ctx context.Context, home, owner string) error {
	if err := os.MkdirAll(m.at(home), 0o700); err != nil {
		return err
	}
	return m.run(ctx, "gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", "",
		"--quick-gen-key", owner+" <lab@example.invalid>", "rsa3072", "sign", "never")
}

func (m rpmMaker) at(name string) string { return filepath.Join(m.c.Root, name) }

// packages builds and signs all packages, in /rpms.
func (m rpmMaker) packages(ctx context.Context) ([]Package, error) {
	groups, err := m.rpmGroups(m.distro)
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		if err := buildRPMs(ctx, m.c, group); err != nil {
			return nil, err
		}
	}

	files, err := filepath.Glob(m.at("/rpms/*.rpm"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("cannot sign packages: rpmbuild made none"))
	}
	sign := []string{"rpmsign", "--define=_gpg_name cudatools", "--addsign"}
	for _, file := range files {
		sign = append(sign, "/rpms/"+filepath.Base(file))
	}
	return slices.Concat(groups...), m.run(ctx, sign...)
}

// repository makes one repository in one state.
func (m rpmMaker) repository(ctx context.Context, variant Variant, sub string, list []Package) error {
	dir := "/made/" + string(variant) + "/" + sub
	if err := os.MkdirAll(m.at(dir), 0o755); err != nil {
		return err
	}
	if err := m.fill(variant, sub, m.at(dir)); err != nil {
		return err
	}
	err := m.run(ctx, "createrepo_c", "--quiet", "--simple-md-filenames", "--general-compress-type=gz", dir)
	if err != nil {
		return err
	}

	if sub != rpmToolkit && streamed(m.distro) {
		if err := m.addStreams(ctx, variant, dir, list); err != nil {
			return err
		}
	}

	if variant != Unsigned {
		home := rightKey
		if variant == WrongKey {
			home = wrongKey
		}
		err := m.run(ctx, "gpg", "--homedir", home, "--batch", "--yes",
			"--armor", "--detach-sign", dir+"/repodata/repomd.xml")
		if err != nil {
			return err
		}
	}

	return m.spoil(variant, m.at(dir))
}

// addStreams adds the index of module streams to a repository.
func (m rpmMaker) addStreams(ctx context.Context, variant Variant, dir string, list []Package) error {
	lacks := func(p Package) bool { return variant == Vanished && upstream(p.Version) == Gone }
	list = slices.DeleteFunc(slices.Clone(list), lacks)
	if err := (File{Text: modules(list)}).lay(m.at("/build/modules.yaml")); err != nil {
		return err
	}
	return m.run(ctx, "modifyrepo_c", "--mdtype=modules", "/build/modules.yaml", dir+"/repodata")
}

// fill links the packages that the variant has.
func (m rpmMaker) fill(variant Variant, sub, dir string) error {
	files, err := filepath.Glob(m.at("/rpms/*.rpm"))
	for _, file := range files {
		name := filepath.Base(file)
		ofToolkit := strings.Contains(name, "container")
		if ofToolkit != (sub == rpmToolkit) || variant.lacksRPM(name) {
			continue
		}
		err = errors.Join(err, os.Link(file, filepath.Join(dir, name)))
	}

	return err
}

// lacksRPM says whether a variant does not have a package's file.
func (v Variant) lacksRPM(file string) bool {
	has := func(version string) bool { return strings.Contains(file, "-"+version+"-") }
	switch v {
	case Vanished:
		return has(Gone) || has(Toolkits()[0])
	case Lagging:
		return has(lags) && rpmCompanions.MatchString(file)
	}

	return false
}

var rpmCompanions = regexp.MustCompile(`^(nvidia-fabric|nvidia-imex|libnvidia-nscq|libnvsdm)`)

// spoil changes what is signed already.
func (m rpmMaker) spoil(variant Variant, dir string) error {
	change := func(name string, how func([]byte) []byte) error {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.Remove(name); err != nil { // it may be a link to the other variants' file
			return err
		}
		return os.WriteFile(name, how(text), 0o644)
	}

	addLine := func(b []byte) []byte { return append(b, " \n"...) }
	addByte := func(b []byte) []byte { return append(b, 0) }
	changeBit := func(b []byte) []byte {
		b[len(b)*3/4] ^= 1
		return b
	}

	switch variant {
	case Tampered:
		return change(filepath.Join(dir, "repodata/repomd.xml"), addLine)
	case Mismatched:
		return change(filepath.Join(dir, "repodata/primary.xml.gz"), addByte)
	case Corrupt:
		files, err := filepath.Glob(filepath.Join(dir, "*.rpm"))
		for _, file := range files {
			err = errors.Join(err, change(file, changeBit))
		}
		return err
	}

	return nil
}

// stream is a module stream of dnf: packages outside the one that is enabled cannot be seen.
type stream struct {
	name    string
	version string // the beginning of the versions in it
	kmod    string // the package of kernel modules; "" for those that are precompiled
}

// streams are those of a set of driver versions: each branch's and two that go on with the newest,
// of open and of proprietary modules for DKMS, and the branch alone for precompiled ones. Source:
// NVIDIA driver installation guide, chapter Red Hat Enterprise Linux; the listings of RHEL 9's 580
// name 580-open, 580-dkms and 580.
func streams(versions []string) []stream {
	const (
		open   = "kmod-nvidia-open-dkms"
		latest = "kmod-nvidia-latest-dkms"
	)
	list := []stream{
		{"open-dkms", "", open},
		{"latest-dkms", "", latest},
	}

	var branches []string
	for _, v := range versions {
		branches = append(branches, branch(v))
	}
	slices.Sort(branches)
	for _, b := range slices.Compact(branches) {
		list = append(list,
			stream{b + "-open", b + ".", open},
			stream{b + "-dkms", b + ".", latest},
			stream{b, b + ".", ""},
		)
	}

	return list
}

// modules returns the index of streams for packages.
func modules(list []Package) string {
	list = slices.DeleteFunc(slices.Clone(list), func(p Package) bool { return !modular(p) })
	var versions []string
	for _, p := range list {
		versions = append(versions, upstream(p.Version))
	}

	var text strings.Builder
	for _, s := range streams(versions) {
		artifacts := s.artifacts(list)
		isKmod := func(artifact string) bool {
			return strings.Contains(artifact, "- kmod-nvidia-")
		}
		if s.kmod == "" && !slices.ContainsFunc(artifacts, isKmod) {
			continue // no precompiled modules of this branch are listed
		}

		profile := "nvidia-driver-cuda"
		if s.kmod != "" {
			profile += ", " + s.kmod
		}
		fmt.Fprintf(&text, streamForm, s.name, profile, strings.Join(artifacts, ""))
	}

	return text.String()
}

// artifacts returns the lines with a stream's packages.
func (s stream) artifacts(list []Package) (lines []string) {
	for _, p := range list {
		if s.has(p) {
			arch := cmp.Or(p.Arch, "x86_64")
			lines = append(lines, fmt.Sprintf("    - %s-%s.%s\n", p.Name, p.Version, arch))
		}
	}

	slices.Sort(lines)
	return lines
}

// streamForm is the document of one stream. A context is eight letters that tell builds of a stream
// for several platforms apart.
const streamForm = `---
document: modulemd
version: 2
data:
  name: nvidia-driver
  stream: "%s"
  version: 20260101000000
  context: "12345678"
  arch: x86_64
  summary: NVIDIA's in tests
  description: NVIDIA's in tests
  license: {module: [Apache-2.0]}
  dependencies:
  - requires: {platform: [el9]}
  profiles:
    default: {rpms: [%s]}
  artifacts:
    rpms:
%s`

// has tells whether a stream has a package.
func (s stream) has(p Package) bool {
	if !strings.HasPrefix(upstream(p.Version), s.version) {
		return false
	}
	switch {
	case p.Stream != "":
		return s.kmod == "" && s.name == p.Stream
	case strings.HasPrefix(p.Name, "kmod-"):
		return p.Name == s.kmod
	case p.Name == "nvidia-open":
		return s.kmod == "kmod-nvidia-open-dkms"
	case p.Name == "cuda-drivers":
		return s.kmod == "kmod-nvidia-latest-dkms"
	}

	return true
}

var modularVersion = regexp.MustCompile(`^3:\d{3}\.`)

// modular tells a package that is in streams: those of the driver, not its companions. They have
// the epoch 3.
func modular(p Package) bool {
	return modularVersion.MatchString(p.Version) || p.Stream != ""
}
