// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strings"

	rpmversion "github.com/knqyf263/go-rpm-version"

	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Kernel separates the kernel that runs from those that need modules.
type Kernel struct {
	Running   string   `json:"running,omitempty"` // "" in a root folder
	Installed []string `json:"installed"`         // the folders of /lib/modules, newest first
}

// Targets lists the kernels that need modules: the running kernel, and the newer ones, which may be
// booted next. Which one a root folder will boot is unknown, so there it is all of them.
func (k Kernel) Targets(live bool) []string {
	if !live {
		return slices.Clone(k.Installed)
	}
	if i := slices.Index(k.Installed, k.Running); i >= 0 {
		return slices.Clone(k.Installed[:i+1])
	}
	if len(k.Installed) > 0 {
		return slices.Clone(k.Installed[:1]) // a container, or the running kernel's package was removed
	}
	if k.Running != "" {
		return []string{k.Running}
	}
	return nil
}

// Fallback is the newest installed kernel that is older than the running one, which the boot menu
// has, too; "" where there is none.
func (k Kernel) Fallback() string {
	if i := slices.Index(k.Installed, k.Running) + 1; i > 0 && i < len(k.Installed) {
		return k.Installed[i]
	}
	return ""
}

// Newer says whether a kernel's release is newer than the running kernel's.
func (k Kernel) Newer(release string) bool { return newer(release, k.Running) > 0 }

// kernel returns the running kernel, and the installed ones newest first.
func (g *gathering) kernel() Kernel {
	k := Kernel{Installed: []string{}}
	if g.v.Live() {
		k.Running = strings.TrimSpace(string(g.read("/proc/sys/kernel/osrelease")))
	}

	// On merged systems both are one folder.
	dir := g.first("/lib/modules", "/usr/lib/modules")
	if dir == "" {
		return k
	}
	for _, name := range g.list(dir) {
		// A removed kernel often leaves its folder with a DKMS module in it, without modules.dep
		// and kernel/.
		folder := dir + "/" + name
		if g.exists(folder+"/modules.dep") || g.exists(folder+"/kernel") {
			k.Installed = append(k.Installed, name)
		}
	}

	sorting.By(k.Installed, func(a, b string) int { return newer(b, a) })
	return k
}

// newer compares two kernel releases as rpm does: above 0 if a is newer. A pre-release (-rc3) comes
// before its release, and a number before letters means a later build: 5.14.0-503.11.1.el9 is newer
// than 5.14.0-503.el9.
func newer(a, b string) int {
	plain := strings.NewReplacer("-rc", "~rc", "-", ".") // rpm compares what follows a "-" apart
	return rpmversion.NewVersion(plain.Replace(a)).Compare(rpmversion.NewVersion(plain.Replace(b)))
}
