// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// moduleFile is the module nvidia on disk for one kernel, from a package. Its state is "580.95.05
// open", with what is wrong with it after a comma. gpuadm does not make it: it verifies that the
// package has brought it, before it loads the module or reboots.
type moduleFile struct {
	kernel string
	proof  ModuleFileFunc
}

// A ModuleFileFunc says which module a kernel has on disk, "580.95.05 open", and after a comma what
// is wrong with it.
type ModuleFileFunc func(v host.View, kernel string) (converge.State, error)

// ModuleFile wants a kernel to have the module of a version and flavour. The packages that bring it
// come before it.
func ModuleFile(kernel, version, flavour string, proof ModuleFileFunc, why string) converge.Want {
	to := func(converge.State) (converge.State, error) {
		return converge.State(version + " " + flavour), nil
	}
	return converge.Want{Thing: moduleFile{kernel, proof}, Why: why, To: to}
}

// NewModuleFile builds the thing again from its name.
func NewModuleFile(name string, proof ModuleFileFunc) converge.Thing {
	return moduleFile{strings.TrimPrefix(name, "nvidia for "), proof}
}

// moduleIn is the module in a moduleFile's state, without what is wrong with it.
func moduleIn(state converge.State) string {
	module, _, _ := strings.Cut(string(state), ",")
	return module
}

func (m moduleFile) Ref() converge.Ref {
	return converge.Ref{Kind: "module-file", Name: "nvidia for " + m.kernel}
}

func (m moduleFile) Look(_ context.Context, v host.View) (converge.State, error) {
	return m.proof(v, m.kernel)
}

// Make always fails: the packages have not brought the module that they should contain.
func (m moduleFile) Make(_ context.Context, h host.Host, to converge.State) error {
	found, err := m.proof(h, m.kernel)
	if err != nil {
		return err
	}

	if found == "" {
		return &trouble.Error{
			What: fmt.Sprintf("cannot use kernel %s: no package has brought a module nvidia %s for it", m.kernel, to),
			Try: []string{
				"build = \"dkms\" in [driver], which builds it here",
				"hold the kernel back until there is a package for it",
			},
		}
	}

	return &trouble.Error{
		What: fmt.Sprintf("cannot use kernel %s: it has the module nvidia %s, and %s is wanted", m.kernel, found, to),
		Try: []string{
			"modinfo -k " + m.kernel + " nvidia, which says where that lies: another package may have brought it, or a build by hand; if it is the right package's file: apt-get install --reinstall, or dnf reinstall",
			"build = \"dkms\" in [driver], which builds it here",
		},
	}
}
