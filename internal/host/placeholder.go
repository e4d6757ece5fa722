// SPDX-License-Identifier: Apache-2.0

package host

import "io/fs"

// The names over which a bake mounts a file of its own, in the namespace of the image's programs.
// If the image has no file of such a name, the bake makes an empty one for its time, without the
// right to be executed: a killed bake leaves a file that does nothing.
const (
	PolicyFile    = "/usr/sbin/policy-rc.d"
	ResolversFile = "/etc/resolv.conf"
	DKMSFile      = "/etc/dkms/framework.conf.d/zz-gpuadm.conf"
	RPMFile       = "/usr/lib/rpm/macros.d/macros.zz-gpuadm"
)

// PlaceholderMode tells such a file from an empty file of the machine's own.
const PlaceholderMode fs.FileMode = 0o400

// Placeholders lists the empty files that a bake has made here: a bake at work, or a killed bake.
func Placeholders(v View) (names []string) {
	for _, name := range []string{PolicyFile, ResolversFile, DKMSFile, RPMFile} {
		info, err := v.Lstat(name)
		if err == nil && info.Mode == PlaceholderMode && info.Size == 0 {
			names = append(names, name)
		}
	}
	return names
}
