// SPDX-License-Identifier: Apache-2.0

package things

import (
	"path"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// maskedFile is the state of a link to /dev/null. In place of a unit's file such a link masks the
// unit: systemd.unit(5).
const (
	nowhere    = "/dev/null"
	maskedFile = converge.State("via %2Fdev%2Fnull")
)

// maskedUntilReboot is what systemd says of a unit with a mask in /run: systemctl(1), is-enabled.
const maskedUntilReboot = "masked-runtime"

// MasksUnit reports whether the first word of a unit's state is a mask.
func MasksUnit(enabled string) bool { return enabled == "masked" || enabled == maskedUntilReboot }

// UnlessMasked leaves a unit that an operator has masked, and the link to /dev/null in place of its
// file.
func UnlessMasked(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		enabled, _ := UnitWords(found)
		if MasksUnit(enabled) || found == maskedFile {
			return found, nil
		}
		return to(found)
	}

	return w
}

// IsMasked reports whether a name is a link to /dev/null.
func IsMasked(v host.View, name string) bool {
	target, err := v.Readlink(name)
	return err == nil && leadsNowhere(name, target)
}

func leadsNowhere(name, target string) bool {
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return path.Clean(target) == nowhere
}
