// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Who holds which lock, in the words of apt (GetLock in apt-pkg/contrib/fileutl.cc) and dpkg (file_lock in lib/dpkg/file.c).
var (
	markHolder = pattern.Of(`(?:held by process|with pid) (\d+)`)
	markFile   = pattern.Of(`lock (?:on )?(/\S*[^\s.])`)
)

// explain says of apt or dpkg that failed what a person can act on.
func explain(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	if err := refused(out); err != nil {
		return err
	}
	all := failed.Stderr + "\n" + out
	if packages.MarkLock().MatchString(failed.Stderr) {
		pid, lock := "", "dpkg's lock"
		if m := markHolder().FindStringSubmatch(all); m != nil {
			pid = m[1]
		}
		if m := markFile().FindStringSubmatch(all); m != nil {
			lock = m[1]
		}
		return packages.Busy(v, pid, lock, err)
	}
	t, known := packages.Failure(v, failed, out, err)
	if known {
		return t
	}
	if dpkgFailed(v, t, out, failed.Stderr) {
		return t
	}
	if len(t.Because) == 0 {
		t.Because = packages.Tail(out, 6) // which packages do not go together apt says there
	}
	t.Try = append(t.Try, "apt-get check, which says whether anything is broken", "apt-cache policy PACKAGE, which says which versions there are, and where", "apt-get update, if the repository has changed since")
	return t
}

// dpkgFailed says which packages a dpkg that failed has left half done, by its database, with the words of the first one's
// script and what its compiler said. It returns false where dpkg has not run, or left nothing.
func dpkgFailed(v host.View, t *trouble.Error, out, said string) bool {
	d, err := readDpkg(v)
	if err != nil || !strings.Contains(said, "dpkg") {
		return false
	}
	var half []string
	for name, p := range d.packages {
		if p.Broken == "half-configured" || p.Broken == "half-installed" {
			half = append(half, name)
		}
	}
	slices.Sort(half)
	switch {
	case d.interrupted:
		t.What = packages.Cannot + "dpkg was killed or interrupted"
		t.Because = packages.Short(append(t.Because, half...))
		t.Try = []string{"journalctl -k, which says whether the kernel ran out of memory", "run " + trouble.Command("apply") + " again, which lets dpkg finish first"}
		return true
	case len(half) == 0:
		return false
	}
	name := half[0]
	t.What = fmt.Sprintf("cannot install package %s: dpkg has left it %s", name, d.packages[name].Broken)
	if len(half) > 1 {
		t.What += "; so are " + strings.Join(half[1:], ", ")
	}
	t.Because = nil
	const dkmsTree = "/var/lib/dkms"
	for _, module := range packages.ListOf(v, dkmsTree) { // undo removes the log with the package
		if log, err := v.ReadFile(path.Join(dkmsTree, module, packages.Own(d.packages[name].Version), "build", "make.log")); err == nil {
			t.Because = append(t.Because, kmod.FirstError(string(log)))
		}
	}
	// Scripts write to either stream, before dpkg's own words.
	if _, after, ok := strings.Cut(out, "Setting up "+name+" "); ok {
		t.Because = append(t.Because, packages.Lines(after)[1:min(6, len(packages.Lines(after)))]...)
	}
	before, own, _ := strings.Cut(said, "dpkg: error processing")
	t.Because = append(t.Because, packages.Tail(before, 6)...)
	if own != "" {
		t.Because = append(t.Because, packages.Lines("dpkg: error processing" + own)[:min(2, len(packages.Lines(own)))]...)
	}
	t.Because = packages.Short(t.Because)
	t.Try = append(t.Try, "/var/log/apt/term.log, which has all that it said")
	return true
}

// Describe is Packager's. apt-cache prints what it knows, and fails where it does not know one: no list says a digest then.
func (apt) Describe(ctx context.Context, v host.View, names []string) (map[string]packages.Description, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	all, files, ask := map[string]packages.Description{}, map[string]string{}, []string{"apt-cache", "show", "--"}
	for _, key := range slices.Sorted(slices.Values(names)) {
		p, ok := d.packages[key]
		if !ok || !p.Installed() {
			continue
		}
		name, _, _ := strings.Cut(key, ":")
		arch := string(d.details(key).arch)
		all[key] = packages.Description{Name: name, Version: p.Version, Arch: arch}
		files[fetchedName(name, p.Version, arch)] = key
		ask = append(ask, key+"="+p.Version)
	}
	if len(all) == 0 {
		return all, nil
	}
	out, err := v.Ask(ctx, ask...)
	if err != nil && !errors.As(err, new(*host.CommandError)) || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	for p := range paragraphs(out) {
		one := archiveOf(p)
		key := files[one.fetched]
		if is, ok := all[key]; ok && is.SHA256 == "" {
			is.SHA256 = one.SHA256
			all[key] = is
		}
	}
	return all, nil
}

// fetchedName is how apt names the file of a package.
func fetchedName(name, version, arch string) string {
	return name + "_" + strings.ReplaceAll(version, ":", "%3a") + "_" + arch + ".deb"
}
