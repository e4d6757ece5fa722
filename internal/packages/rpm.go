// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Where rpm keeps its database: RHEL 8 and 9, Amazon Linux 2023; then Fedora, RHEL 10, Azure Linux.
func rpmFolders() []string { return []string{"/var/lib/rpm", "/usr/lib/sysimage/rpm"} }

// An rpmPackage is one package in one version.
type rpmPackage struct{ name, evr, arch string }

// nevra is what dnf takes and rpm says: NAME-[EPOCH:]VERSION-RELEASE.ARCH.
func (p rpmPackage) nevra() string { return p.name + "-" + p.evr + "." + p.arch }

// full is nevra with the epoch, be it 0: without one dnf takes any.
func (p rpmPackage) full() string {
	if !strings.Contains(p.evr, ":") {
		return p.name + "-0:" + p.evr + "." + p.arch
	}
	return p.nevra()
}

// several says whether the package can be installed in several versions at a time: a kernel and its parts. In what is
// wanted these are named with version and architecture, as dnf takes them too: kernel-devel-5.14.0-427.el9.x86_64.
func (p rpmPackage) several() bool { return strings.HasPrefix(p.name, "kernel") }

// rpmKeyName is what rpm's database calls each public key, as if it were a package; its version is the end of the key's
// fingerprint, its release the time of its making.
const rpmKeyName = "gpg-pubkey"

// keys are the names that the package goes by.
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
	return []string{p.name + "-" + bare(p.evr) + "." + p.arch, name}
}

// key is the first of its names, or the one that is asked for.
func (p rpmPackage) key(asked map[string]bool) string {
	all := p.keys()
	for _, k := range all {
		if asked[k] {
			return k
		}
	}
	return all[0]
}

// nativeRPM is what rpm calls the architecture that this program was built for.
func nativeRPM() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// evr writes a version; epoch 0 is left out.
func evr(epoch, version, release string) string {
	s := version + "-" + release
	if epoch != "" && epoch != "0" && epoch != "(none)" {
		s = epoch + ":" + s
	}
	return s
}

// bare is a version without its epoch.
func bare(evr string) string {
	if _, after, ok := strings.Cut(evr, ":"); ok {
		return after
	}
	return evr
}

// named is what dnf and rpm are told for a package of ours in a version.
func named(name, version string) string {
	base, arch, foreign := strings.Cut(name, ".")
	if i := strings.LastIndex(name, "."); i >= 0 {
		base, arch = name[:i], name[i+1:]
	}
	switch {
	case strings.HasSuffix(base, "-"+bare(version)): // the version is in the name
		return name
	case foreign && (arch == "i686" || arch == "x86_64" || arch == "aarch64"):
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

// An rpmDatabase is how all packages stand.
type rpmDatabase struct {
	list     []rpmPackage
	packages map[string]State
	past     past
	locks    locks
}

// rpmFormat is a line for each package.
const rpmFormat = `%{NAME}\t%{EPOCHNUM}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\n`

// readRPM asks rpm what is installed, and reads dnf's history and locks.
func readRPM(ctx context.Context, v host.View) (rpmDatabase, error) {
	out, err := v.Ask(ctx, "rpm", "-qa", "--qf", rpmFormat)
	if err != nil {
		return rpmDatabase{}, fmt.Errorf("cannot read rpm's database: %w", err)
	}
	d := rpmDatabase{list: parseRPM(string(out))}
	if d.past, err = readPast(v); err != nil {
		return rpmDatabase{}, err
	}
	if d.locks, err = readLocks(v); err != nil {
		return rpmDatabase{}, err
	}
	d.fill()
	return d, nil
}

func parseRPM(out string) (list []rpmPackage) {
	for line := range strings.Lines(out) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 5 {
			list = append(list, rpmPackage{f[0], evr(f[1], f[2], f[3]), f[4]})
		}
	}
	// Of several versions the newest counts.
	slices.SortFunc(list, func(a, b rpmPackage) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return compareDebian(a.evr, b.evr)
	})
	return list
}

func (d *rpmDatabase) fill() {
	d.packages = make(map[string]State, len(d.list))
	for _, p := range d.list {
		s := State{Version: p.evr, Auto: d.past.auto[p.name+"."+p.arch], Held: d.locks.holds(p)}
		if d.past.failed[p.nevra()] {
			s.Broken = "half-configured"
		}
		for _, k := range p.keys() {
			d.packages[k] = s
		}
	}
}

// has says whether exactly this is installed.
func (d rpmDatabase) has(p rpmPackage) bool { return slices.Contains(d.list, p) }

// doubles returns the older ones of packages that are installed twice and should not be: dnf was killed between
// installing the new and removing the old.
func (d rpmDatabase) doubles() (older []rpmPackage) {
	for i, p := range d.list[:max(0, len(d.list)-1)] {
		next := d.list[i+1]
		if p.name == next.name && p.arch == next.arch && p.name != rpmKeyName && d.interrupts(p) {
			older = append(older, p)
		}
	}
	return older
}

// interrupts says whether the transaction that never ended was about a package of this name.
func (d rpmDatabase) interrupts(p rpmPackage) bool {
	return d.past.left != nil && !p.several() && slices.ContainsFunc(d.past.left.incoming, func(in rpmPackage) bool {
		return in.name == p.name && in.arch == p.arch
	})
}

// halfDone returns what the transaction that never ended has left: packages that it may not have installed or removed
// to the end. nil: it came to nothing.
func (d rpmDatabase) halfDone() (list []rpmPackage) {
	if d.past.left == nil {
		return nil
	}
	for _, p := range slices.Concat(d.past.left.incoming, d.past.left.outgoing) {
		if d.has(p) {
			list = append(list, p)
		}
	}
	return list
}
