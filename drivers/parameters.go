// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// CheckParameter refuses a parameter that the module nvidia of the wanted version or branch does
// not have: the kernel ignores it with one line in its log. A module of that version on the machine
// decides. Without one the catalog knows some names; of any other the error is a host.Later.
func CheckParameter(name, version string, m *facts.Modules) error {
	known, installed := installedParameters(version, m)
	if !installed {
		known = catalogParameters()
	}
	if slices.Contains(known, name) {
		return nil
	}
	if module := moduleBeside(name); module != "" {
		return &trouble.Error{
			What: fmt.Sprintf("cannot set %s: it is a parameter of the module %s, and gpuadm sets those of nvidia", name, module),
			Try:  []string{fmt.Sprintf("take it out of parameters in [driver], and write a line into a file of your own in /etc/modprobe.d: options %s %s=VALUE", module, name)},
		}
	}

	prefixed := "NVreg_" + name
	lacksPrefix := slices.Contains(known, prefixed)
	near := nearest.Of(name, known)
	fix := ""
	switch {
	case lacksPrefix:
		fix = "write " + prefixed
	case near != "":
		fix = "did you mean " + near + "?"
	}

	if !installed && !lacksPrefix {
		until := "once the module is installed: no driver that this gpuadm knows has " + name
		if fix != "" {
			until += "; " + fix
		}
		return host.Later{Until: until}
	}

	t := &trouble.Error{
		What: fmt.Sprintf("cannot set %s: the module nvidia has no such parameter, and the kernel would ignore it", name),
		Try:  []string{"modinfo -p nvidia, on a machine with the driver, lists those that it has"},
	}
	if fix != "" {
		t.Try = append([]string{fix}, t.Try...)
	}
	return t
}

// installedParameters returns the parameters of the modules on the machine that have the wanted
// version or branch. installed is false if there is none, or if it says nothing of parameters.
func installedParameters(version string, m *facts.Modules) (names []string, installed bool) {
	if m == nil {
		return nil, false
	}
	for _, k := range m.Kernels {
		if k.Nvidia != nil && hardware.InBranch(k.Nvidia.Version, version) {
			names = append(names, k.Nvidia.Parameters...)
		}
	}

	return names, len(names) > 0
}

// catalogParameters are the parameters of the module nvidia that the catalog knows.
func catalogParameters() (names []string) {
	for _, row := range Load().Parameters {
		if row.Module == "" {
			names = append(names, row.Names...)
		}
	}
	return names
}

// moduleBeside returns the module beside nvidia that has a parameter by the catalog; ""
// if none has.
func moduleBeside(name string) (module string) {
	has := func(pattern string) bool {
		head, isPrefix := strings.CutSuffix(pattern, "*")
		return pattern == name || isPrefix && strings.HasPrefix(name, head)
	}

	for _, row := range Load().Parameters {
		if row.Module != "" && slices.ContainsFunc(row.Names, has) {
			return row.Module
		}
	}

	return ""
}
