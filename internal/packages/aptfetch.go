// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// aptArchives is where apt keeps what it has downloaded, until somebody cleans up.
const aptArchives = "/var/cache/apt/archives"

// stored returns the file in our own folder that a version of a package can be installed from; "" if there is none.
func stored(v host.View, name, version string) string { return archive(v, Store, name, version) }

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

// fetch brings what gets replaced to our own folder, as far as a source still has it: resolve has told where none has.
// Where anything is broken this is the way back, or a repair: what stands is not worth keeping, and must not stop us.
func (a apt) fetch(ctx context.Context, h host.Host, d dpkg, changes []converge.Change) error {
	var names, want []string
	for _, c := range changes {
		found, after := d.packages[c.Name], Parse(c.After)
		if found.Broken != "" && found.Broken != configFiles {
			return nil
		}
		if found.Installed() && found.Version != after.Version && stored(h, c.Name, found.Version) == "" {
			names = append(names, c.Name)
		}
	}
	offers, err := a.offers(ctx, h, names)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		if err := folder(h); err != nil {
			return err
		}
	}
	for _, name := range names {
		version := d.packages[name].Version
		if file := cached(h, name, version); file != "" {
			if err := keep(h, file); err == nil {
				continue
			}
		}
		if _, ok := find(offers[name], version); ok {
			want = append(want, name+"="+version)
		}
	}
	if len(want) == 0 {
		return nil
	}
	argv := append([]string{"env", "-C", Store, "apt-get", "-q", "-o", "Acquire::Retries=3", "download", "--"}, want...)
	if out, err := h.Do(ctx, argv...); err != nil {
		t := &converge.Trouble{What: "cannot fetch what would be replaced, for the way back", Err: err}
		if why := (*converge.Trouble)(nil); errors.As(explain(h, string(out), err), &why) {
			t.Because, t.Try = append([]string{why.What}, why.Because...), why.Try
		}
		return t
	}
	return nil
}

// keepBuilds keeps what dkms has built of what gets replaced. dpkg lists a package's files in its info folder.
func (a apt) keepBuilds(ctx context.Context, h host.Host, d dpkg, changes []converge.Change) error {
	for _, c := range replaced(changes, func(name string) State { return d.packages[name].State }) {
		var sources []moduleSource
		bare, _, _ := strings.Cut(c.Name, ":")
		for _, info := range []string{bare, bare + ":" + d.native} {
			data, err := h.ReadFile("/var/lib/dpkg/info/" + info + ".list")
			if err != nil {
				continue
			}
			for file := range strings.Lines(string(data)) {
				if s, ok := sourceOf(strings.TrimSpace(file)); ok {
					sources = append(sources, s)
				}
			}
		}
		if err := keepBuilds(ctx, h, c.Name, d.packages[c.Name].Version, sources); err != nil {
			return err
		}
	}
	return nil
}

// keep copies a file of apt's to our folder. What is too large to be read whole is left for apt to download.
func keep(h host.Host, file string) error {
	data, err := h.ReadFile(file)
	if err != nil {
		return err
	}
	return h.WriteFile(path.Join(Store, path.Base(file)), data, host.Attr{Mode: 0o644})
}

// folder makes our folder where it is missing. It is for root alone: what lies in it gets installed.
func folder(h host.Host) error {
	for _, dir := range []string{converge.Home, Store} {
		_, err := h.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = h.Mkdir(dir, host.Attr{Mode: 0o700})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
