// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"slices"
	"strings"
)

// Signed modules of Ubuntu's archive are packages named linux-modules-nvidia-BRANCH-…-KERNEL, one for each kernel.
// Source: https://documentation.ubuntu.com/server/how-to/graphics/install-nvidia-drivers/
const signedModules = "linux-modules-nvidia-"

// signed asks apt which of them it knows of, where a target kernel has no module of the branch yet: a machine that stands
// asks nobody.
func (l *look) signed(ctx context.Context, f Facts, branch string) []string {
	if !f.Live || f.OS.ID != "ubuntu" && !slices.Contains(f.OS.Like, "ubuntu") {
		return nil
	}
	targets := f.Kernel.Targets(f.Live)
	lacks := slices.ContainsFunc(targets, func(kernel string) bool {
		if f.Modules == nil {
			return true
		}
		k, _ := f.Modules.Of(kernel)
		return k.Nvidia == nil || !strings.HasPrefix(k.Nvidia.Version, branch+".")
	})
	if !lacks {
		return nil
	}
	ask := []string{"apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="}
	out, err := l.v.Ask(ctx, append(ask, "pkgnames", signedModules)...)
	names := strings.Fields(string(out))
	if err != nil || len(names) == 0 {
		return nil // no lists, or not of the component that has them: then nobody knows
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(targets, func(kernel string) bool { return strings.HasSuffix(name, "-"+kernel) })
	})
	if len(names) == 0 {
		return []string{}
	}
	// Names are known too that others only depend on.
	if out, err = l.v.Ask(ctx, append(append(ask, "madison", "--"), names...)...); err != nil {
		return nil
	}
	found := []string{}
	for line := range strings.Lines(string(out)) {
		if name, _, ok := strings.Cut(line, "|"); ok && !slices.Contains(found, strings.TrimSpace(name)) {
			found = append(found, strings.TrimSpace(name))
		}
	}
	slices.Sort(found)
	return found
}
