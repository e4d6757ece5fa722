// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"slices"
	"strings"
)

// Signed modules of Ubuntu's archive are packages named linux-modules-nvidia-BRANCH-…-KERNEL, one
// for each kernel.
// Source: https://documentation.ubuntu.com/server/how-to/graphics/install-nvidia-drivers/
const signedModules = "linux-modules-nvidia-"

// signed asks apt which of them it knows, if a target kernel has no module of the branch yet: a
// converged machine does not ask. nil if it is unknown.
func (g *gathering) signed(ctx context.Context, f Facts, branch string) []string {
	isUbuntu := f.OS.ID == "ubuntu" || slices.Contains(f.OS.Like, "ubuntu")
	if !g.v.Runs() || !isUbuntu {
		return nil
	}
	targets := f.Kernel.Targets(f.Live)
	lacksSigned := func(kernel string) bool {
		return f.Modules == nil || !f.Modules.hasSigned(kernel, branch)
	}
	if !slices.ContainsFunc(targets, lacksSigned) {
		return nil
	}

	// apt lists the names that sources have, without dpkg's list of installed packages, and writes
	// no cache. Reading apt's lists is the slow part, so it is done once for all names.
	out, err := g.v.Ask(ctx, "apt-cache",
		"-o", "Dir::Cache::pkgcache=",
		"-o", "Dir::Cache::srcpkgcache=",
		"-o", "Dir::State::status=/dev/null",
		"search", "--names-only", "^"+signedModules)
	if err != nil || len(out) == 0 {
		return nil // there are no lists, or the component with these packages is not enabled
	}

	found := []string{}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		forKernel := func(kernel string) bool { return strings.HasSuffix(name, "-"+kernel) }
		if slices.ContainsFunc(targets, forKernel) {
			found = append(found, name)
		}
	}

	slices.Sort(found)
	return slices.Compact(found)
}

// hasSigned says whether a kernel has a module of the branch from the distribution's archive.
func (m Modules) hasSigned(kernel, branch string) bool {
	k, _ := m.Of(kernel)
	return k.Nvidia != nil && strings.HasPrefix(k.Nvidia.Version, branch+".") && !IsShared(k.Nvidia.Path)
}
