// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// aptArchives is where apt keeps what it has downloaded, until an administrator cleans up.
const aptArchives = "/var/cache/apt/archives"

// Stored returns the file in our own folder that a version of a package can be installed from; ""
// if there is none.
func (apt) Stored(v host.View, name, version string) string {
	return stored(v, name, version)
}

func stored(v host.View, name, version string) string {
	return archive(v, packages.Store, name, version)
}

// archive finds NAME_VERSION_ARCH.deb, as apt names what it downloads: the colon of an epoch is
// written %3a.
func archive(v host.View, dir, name, version string) string {
	bare, arch, foreign := strings.Cut(name, ":")
	start := bare + "_" + strings.ReplaceAll(version, ":", "%3a") + "_"
	for _, file := range packages.ListOf(v, dir) {
		rest, ok := strings.CutPrefix(file, start)
		fileArch, isDeb := strings.CutSuffix(rest, ".deb")
		if ok && isDeb && (!foreign || fileArch == arch) {
			return path.Join(dir, file)
		}
	}

	return ""
}

// Keep copies installed packages to Store, as far as a source still has them. It skips a broken
// package, which must not stop its own repair.
func (a apt) Keep(ctx context.Context, h host.Host, names []string) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	unstored := func(names []string) (list []string) {
		for _, name := range names {
			found := d.packages[name]
			if found.Broken == "" && stored(h, name, found.Version) == "" {
				list = append(list, name)
			}
		}
		return list
	}

	names = unstored(names)
	if len(names) == 0 {
		return nil
	}
	if err := packages.MakeStore(h); err != nil {
		return err
	}
	link(ctx, h, names, d.packages)

	names = unstored(names)
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	var want []string
	for _, name := range names {
		version := d.packages[name].Version
		if _, offered := packages.Find(offers[name], version); offered {
			want = append(want, name+"="+version)
		}
	}

	if len(want) == 0 {
		return nil
	}

	slices.Sort(want)
	aptGet := []string{"env", "-C", packages.Store, "apt-get", "-q", "-o", "Acquire::Retries=3"}
	argv := slices.Concat(aptGet, unpinned(), []string{"download", "--"}, want)
	if out, err := h.Do(ctx, argv...); err != nil {
		return explain(h, string(out), err)
	}
	return nil
}

// keepNew keeps the files of packages that were just installed in the spec's version: undo of the
// next upgrade needs them, and no repository may have them by then. They take no room while apt
// keeps them, too. An image needs none.
func keepNew(ctx context.Context, h host.Host, changes []converge.Change) error {
	installed := map[string]packages.State{}
	var names []string
	for _, c := range packages.Due(changes) {
		after := packages.Parse(c.After)
		if after.Installed() && after.Held && stored(h, c.Name, after.Version) == "" {
			installed[c.Name] = after
			names = append(names, c.Name)
		}
	}

	if len(names) == 0 || !h.Live() {
		return nil
	}

	if err := packages.MakeStore(h); err != nil {
		return err
	}
	link(ctx, h, names, installed)
	return nil
}

// link links apt's downloads into Store. If Store is on another file system, apt downloads a
// package again when undo needs it.
func link(ctx context.Context, h host.Host, names []string, installed map[string]packages.State) {
	var files []string
	for _, name := range names {
		if file := archive(h, aptArchives, name, installed[name].Version); file != "" {
			files = append(files, file)
		}
	}

	if len(files) > 0 {
		ln := []string{"ln", "-f", "-t", packages.Store, "--"}
		_, _ = h.Do(ctx, append(ln, files...)...)
	}
}
