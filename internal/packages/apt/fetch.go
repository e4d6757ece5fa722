// SPDX-FileCopyrightText: The gpuadm authors
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

// Stored returns the file in our own folder that a version of a package can be installed from; "" if there is none.
func (apt) Stored(v host.View, name, version string) string { return stored(v, name, version) }

func stored(v host.View, name, version string) string {
	return archive(v, packages.Store, name, version)
}

// cached returns the same in apt's folder.
func cached(v host.View, name, version string) string { return archive(v, aptArchives, name, version) }

// archive finds NAME_VERSION_ARCH.deb, as apt names what it downloads: the colon of an epoch is written %3a.
func archive(v host.View, dir, name, version string) string {
	bare, arch, foreign := strings.Cut(name, ":")
	start := bare + "_" + strings.ReplaceAll(version, ":", "%3a") + "_"
	names, err := v.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, n := range names {
		rest, ok := strings.CutPrefix(n, start)
		of, deb := strings.CutSuffix(rest, ".deb")
		if ok && deb && (!foreign || of == arch) {
			return path.Join(dir, n)
		}
	}
	return ""
}

// Keep brings installed packages to Store, as far as a source still has them. What is broken is not worth keeping, and must not stop what
// repairs it.
func (a apt) Keep(ctx context.Context, h host.Host, of []string) error {
	installed, err := readStates(h)
	if err != nil {
		return err
	}
	var names, want []string
	for _, name := range of {
		if found := installed[name]; found.Broken == "" && stored(h, name, found.Version) == "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := packages.Folder(h); err != nil {
		return err
	}
	link(ctx, h, names, installed)
	names = slices.DeleteFunc(names, func(name string) bool { return stored(h, name, installed[name].Version) != "" })
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := packages.Find(offers[name], installed[name].Version); ok {
			want = append(want, name+"="+installed[name].Version)
		}
	}
	if len(want) == 0 {
		return nil
	}
	argv := append([]string{"env", "-C", packages.Store, "apt-get", "-q", "-o", "Acquire::Retries=3", "download", "--"}, want...)
	out, err := h.Do(ctx, argv...)
	if err != nil {
		return explain(h, string(out), err)
	}
	return nil
}

// keepNew keeps the files of packages that were just installed in the version that the spec asks for: the next upgrade needs them for its
// undo, and no repository may have them then. They cost no room as long as apt keeps them, too. An image needs none.
func keepNew(ctx context.Context, h host.Host, changes []converge.Change) error {
	installed, names := map[string]packages.State{}, []string(nil)
	for _, c := range packages.Due(changes) {
		after := packages.Parse(c.After)
		if after.Installed() && after.Held && stored(h, c.Name, after.Version) == "" {
			installed[c.Name], names = after, append(names, c.Name)
		}
	}
	if len(names) == 0 || !h.Live() {
		return nil
	}
	if err := packages.Folder(h); err != nil {
		return err
	}
	link(ctx, h, names, installed)
	return nil
}

// link keeps what apt has downloaded. Where Store is on another file system apt downloads it again, once it is needed.
func link(ctx context.Context, h host.Host, names []string, installed map[string]packages.State) {
	argv := []string{"ln", "-f", "-t", packages.Store, "--"}
	for _, name := range names {
		if file := cached(h, name, installed[name].Version); file != "" {
			argv = append(argv, file)
		}
	}
	if argv[len(argv)-1] != "--" {
		_, _ = h.Do(ctx, argv...)
	}
}
