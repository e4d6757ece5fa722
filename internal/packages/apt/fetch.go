// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"path"
	"strings"

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
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	if err := packages.Folder(h); err != nil {
		return err
	}
	for _, name := range names {
		version := installed[name].Version
		if file := cached(h, name, version); file != "" {
			if err := copyFile(h, file); err == nil {
				continue
			}
		}
		if _, ok := packages.Find(offers[name], version); ok {
			want = append(want, name+"="+version)
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

// copyFile copies a file of apt's to our folder. What is too large to be read whole is left for apt to download.
func copyFile(h host.Host, file string) error {
	data, err := h.ReadFile(file)
	if err != nil {
		return err
	}
	return h.WriteFile(path.Join(packages.Store, path.Base(file)), data, host.Attr{Mode: 0o644})
}
