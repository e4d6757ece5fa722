// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Files of gpuadm's that modprobe(8) and systemd-modules-load.service(8) read.
const (
	ModprobeFile = "/etc/modprobe.d/gpuadm.conf"
	LoadFile     = "/etc/modules-load.d/gpuadm.conf"
)

var (
	parameterName = pattern.Of(`^[A-Za-z0-9_]+$`)
	unquotedValue = pattern.Of(`^[A-Za-z0-9_.,:;=/+-]+$`)
)

// KeepsOthersAway are lines for modprobe.d that keep the kernel's own drivers off the GPUs:
// nouveau, and nova, which Ubuntu's first kernels of 26.04 have.
// Sources: https://github.com/beclab/Olares/pull/3963;
// https://github.com/fedora-silverblue/silverblue-docs/pull/199.
const KeepsOthersAway = "blacklist nouveau\noptions nouveau modeset=0\nblacklist nova_core\nblacklist nova_drm\n"

// ModprobeConf writes the file for modprobe.d. libkmod passes a line's options to the kernel
// unchanged, which splits them at spaces outside double quotes and knows no escapes (next_arg in
// lib/cmdline.c): modprobe.d cannot set a value with a quote, a backslash or a control character.
func ModprobeConf(parameters map[string]string) ([]byte, error) {
	var conf strings.Builder
	conf.WriteString("# Written by gpuadm, rewritten at each apply.\n" + KeepsOthersAway)
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[name]
		if !parameterName().MatchString(name) {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot set parameter %q of the module nvidia: a name has letters, digits and _ only", name),
				Try:  []string{"fix parameters in [driver]; modinfo -p nvidia lists the names"},
			}
		}

		if strings.ContainsFunc(value, unusableInValue) {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot set parameter %s of the module nvidia: the kernel takes no quotes, backslashes or control characters in values", name),
				Try:  []string{"fix parameters in [driver]"},
			}
		}

		if !unquotedValue().MatchString(value) {
			value = `"` + value + `"`
		}
		fmt.Fprintf(&conf, "options nvidia %s=%s\n", name, value)
	}

	return []byte(conf.String()), nil
}

// unusableInValue says whether modprobe.d cannot set a value with a character.
func unusableInValue(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }

// modulesLoad writes the file for modules-load.d: nvidia and its companions.
func modulesLoad(companions []string) ([]byte, error) {
	text := "# Written by gpuadm, rewritten at each apply.\nnvidia\n"
	for _, name := range companions {
		if !pattern.Only(name, pattern.Lower+pattern.Digits+"_-") {
			return nil, fmt.Errorf("internal error: %q is not a module's name", name)
		}
		text += name + "\n"
	}

	return []byte(text), nil
}
