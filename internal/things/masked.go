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

// UnlessMasked leaves a unit that an operator has masked, and the link to /dev/null in place of its
// file.
func UnlessMasked(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		enabled, _ := UnitWords(found)
		if enabled == "masked" || found == maskedFile {
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
