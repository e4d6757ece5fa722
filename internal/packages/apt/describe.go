// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

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
