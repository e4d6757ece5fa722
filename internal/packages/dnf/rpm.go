// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	version "github.com/knqyf263/go-rpm-version"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/things"
)

// An rpmPackage is one package in one version.
type rpmPackage struct{ name, evr, arch string }

// full returns rpm's name NAME-EPOCH:VERSION-RELEASE.ARCH. It always has the epoch, also 0: without
// one dnf matches any.
func (p rpmPackage) full() string {
	return p.name + "-" + withEpoch(p.evr) + "." + p.arch
}

// several reports whether the package can be installed in several versions at a time: a kernel and
// its parts. Wants name such packages with version and architecture, which dnf accepts too:
// kernel-devel-5.14.0-427.el9.x86_64.
func (p rpmPackage) several() bool { return strings.HasPrefix(p.name, "kernel") }

// rpmKeyName is the name of every public key in rpm's database, which lists keys as packages; the
// version is the end of the key's fingerprint (rpm 6: all of it), the release its time of creation.
const rpmKeyName = "gpg-pubkey"

// keys returns the names that wants may have for the package.
func (p rpmPackage) keys() []string {
	name := p.name
	if p.arch != nativeRPM() && p.arch != "noarch" {
		name += "." + p.arch
	}
	switch {
	case p.name == rpmKeyName:
		return []string{p.name + "-" + p.evr}
	case !p.several():
		return []string{name}
	}

	return []string{p.name + "-" + packages.Unepoched(p.evr) + "." + p.arch, name}
}

// key returns the name that is asked for, else the first of its names.
func (p rpmPackage) key(asked map[string]bool) string {
	names := p.keys()
	first := slices.IndexFunc(names, func(name string) bool { return asked[name] })
	return names[max(0, first)]
}

// nativeRPM is what rpm calls the architecture that this program was built for.
func nativeRPM() string { return rpmArch(runtime.GOARCH) }

// rpmArch is what rpm calls one of Go's architectures.
func rpmArch(arch string) string {
	switch arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return ""
}

// evr writes a version; epoch 0 is left out.
func evr(epoch, version, release string) string {
	s := version + "-" + release
	if epoch != "" && epoch != "0" && epoch != "(none)" {
		s = epoch + ":" + s
	}
	return s
}

// Compare orders versions as rpm does.
func (dnf) Compare(a, b string) int {
	return version.NewVersion(a).Compare(version.NewVersion(b))
}

// named returns dnf's and rpm's name for a wanted package in a version.
func named(name, version string) string {
	base := name
	arch := ""
	if dot := strings.LastIndex(name, "."); dot >= 0 {
		base = name[:dot]
		arch = name[dot+1:]
	}
	if strings.HasSuffix(base, "-"+packages.Unepoched(version)) { // the version is in the name
		return name
	}

	switch arch {
	case "i686", "x86_64", "aarch64":
		return base + "-" + withEpoch(version) + "." + arch
	}

	return name + "-" + withEpoch(version)
}

func withEpoch(evr string) string {
	if strings.Contains(evr, ":") {
		return evr
	}
	return "0:" + evr
}

// An rpmDatabase is a reading of rpm's database and of dnf's locks.
type rpmDatabase struct {
	list     []rpmPackage
	came     map[rpmPackage]installation
	keys     map[rpmPackage]string // fingerprints
	packages map[string]packages.State
	lacks    map[string][]string // what packages lack, by the name of wants
	locks    locks
	cut      time.Time // when a dnf that was killed began; the zero time if none was
}

// beginsWithin is the longest time in seconds from dnf's lock to the begin of rpm's transaction:
// dnf downloads before it locks.
const beginsWithin = 600

// installation is when a package was installed, in seconds since 1970, and the id of rpm's
// transaction: rpm's tags INSTALLTIME and INSTALLTID (docs/manual/tags.md in rpm's tree).
type installation struct{ at, transaction int64 }

// rpmFormat prints a line for each package; a public key's has more lines, since the key is base64
// on several lines. Other packages have no key. Sources: makePubkeyHeader in lib/keystore.cc of rpm
// 6, and in lib/rpmts.c of rpm 4.14; Datadog's agent asks the same (updateWithRPMDB in
// comp/metadata/packagesigning/packagesigningimpl/rpmsigning.go).
const rpmFormat = `%{NAME}\t%{EPOCHNUM}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\t%{INSTALLTIME}\t%{INSTALLTID}\t%{PUBKEYS}\n`

// readRPM asks rpm what is installed, and what locked packages lack, and reads dnf's locks. Only
// dnf records why a package is installed, and an upgrade, a downgrade and a reinstallation keep
// that record. So readRPM does not ask for it.
func (a dnf) readRPM(ctx context.Context, v host.View) (rpmDatabase, error) {
	out, err := v.Ask(ctx, "rpm", "-qa", "--qf", rpmFormat)
	if err != nil {
		return rpmDatabase{}, fmt.Errorf("cannot read rpm's database: %w", err)
	}
	d := parseRPM(string(out))
	d.cut = cutShort(v)
	d.locks, err = readLocks(v)
	if err != nil {
		return rpmDatabase{}, err
	}
	d.fill()
	return d, a.markIncomplete(ctx, v, &d)
}

func parseRPM(out string) rpmDatabase {
	d := rpmDatabase{came: map[rpmPackage]installation{}, keys: map[rpmPackage]string{}}
	var key strings.Builder // of the last package
	endKey := func() {
		last := len(d.list) - 1
		if last >= 0 && d.list[last].name == rpmKeyName {
			d.keys[d.list[last]] = fingerprintOf(key.String())
		}
		key.Reset()
	}

	for line := range strings.Lines(out) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 8 {
			key.WriteString(line)
			continue
		}
		endKey()
		key.WriteString(columns[7])

		p := rpmPackage{
			name: columns[0],
			evr:  evr(columns[1], columns[2], columns[3]),
			arch: columns[4],
		}
		var came installation
		came.at, _ = strconv.ParseInt(columns[5], 10, 64)
		came.transaction, _ = strconv.ParseInt(columns[6], 10, 64)
		d.list = append(d.list, p)
		d.came[p] = came
	}

	endKey()

	// Of several versions the newest counts: fill takes the last.
	sorting.By(d.list, func(a, b rpmPackage) int {
		if byName := strings.Compare(a.name, b.name); byName != 0 {
			return byName
		}
		return dnf{}.Compare(a.evr, b.evr)
	})
	return d
}

// fill makes the states from the list and the locks.
func (d *rpmDatabase) fill() {
	d.packages = make(map[string]packages.State, len(d.list))
	for _, p := range d.list {
		state := packages.State{Version: p.evr, Held: d.locks.holds(p)}
		if p.name == rpmKeyName {
			state.Version = d.keys[p]
		}
		for _, name := range p.keys() {
			d.packages[name] = state
		}
	}
}

// fingerprintOf returns the fingerprint of a key in rpm's database; "-" if the text is not a key.
// It does not trust the key's name, which has only the last eight digits: an attacker can generate
// a key with the same digits.
func fingerprintOf(base64Key string) string {
	packets, err := base64.StdEncoding.DecodeString(base64Key)
	if err != nil {
		return packages.Nowhere
	}
	found, err := things.Fingerprints(packets, "")
	if err != nil || len(found) != 1 {
		return packages.Nowhere
	}
	return found[0]
}

// halfDone returns the packages that a killed dnf has installed, perhaps incompletely: all packages
// of its transaction. A package that it was removing does not show: rpm lists it as installed until
// its last file is gone.
func (d rpmDatabase) halfDone() (list []rpmPackage) {
	if d.cut.IsZero() {
		return nil
	}

	since := d.cut.Unix()
	first := installation{}
	for _, came := range d.came {
		if came.at >= since && (first.at == 0 || came.at < first.at) {
			first = came
		}
	}

	if first.at == 0 || first.transaction > since+beginsWithin {
		return nil // dnf was killed before it began, and another process made any later changes
	}

	for _, p := range d.list {
		came := d.came[p]
		ofTransaction := came.at >= since && came.transaction == first.transaction
		if ofTransaction && p.name != rpmKeyName {
			list = append(list, p)
		}
	}

	return list
}

// doubles returns the older version of packages that are wrongly installed twice: dnf was killed
// after it installed the new version and before it removed the old.
func (d rpmDatabase) doubles() (older []rpmPackage) {
	half := d.halfDone()
	for _, p := range d.list {
		if p.several() || slices.Contains(half, p) {
			continue
		}
		otherVersion := func(o rpmPackage) bool { return o.name == p.name && o.arch == p.arch }
		if slices.ContainsFunc(half, otherVersion) {
			older = append(older, p)
		}
	}

	return older
}

// FilesOf queries rpm once for all packages. Without a name rpm fails.
func (dnf) FilesOf(ctx context.Context, v host.View, names []string) (map[string][]string, error) {
	if len(names) == 0 {
		return nil, nil
	}

	const format = `[%{=NAME}\t%{FILENAMES}\n]`
	out, err := v.Ask(ctx, append([]string{"rpm", "-q", "--qf", format}, names...)...)
	if err != nil {
		return nil, fmt.Errorf("cannot list the files of packages: %w", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all[name] = append(all[name], file)
	}

	return all, nil
}
