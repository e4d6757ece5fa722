// SPDX-License-Identifier: Apache-2.0

package repos

import (
	_ "embed"
	"fmt"
)

//go:embed module/nvidia.c
var nvidiaC string

//go:embed module/beside.c
var besideC string

// moduleSource is what a DKMS package of one driver has in /usr/src: real C of modules that say
// what NVIDIA's say. Only the license tells NVIDIA's open modules ("Dual MIT/GPL") from the others
// ("NVIDIA").
func moduleSource(version, license string) map[string]File {
	dir := "/usr/src/nvidia-" + version + "/"
	return map[string]File{
		dir + "nvidia.c":         {Text: nvidiaC},
		dir + "nvidia-uvm.c":     {Text: besideC},
		dir + "nvidia-modeset.c": {Text: besideC},
		dir + "nvidia-drm.c":     {Text: besideC},
		dir + "nvidia-peermem.c": {Text: besideC},
		dir + "lab.h":            {Text: fmt.Sprintf("#define LAB_VERSION %q\n#define LAB_LICENSE %q\n", version, license)},
		dir + "Makefile":         {Text: "obj-m := nvidia.o nvidia-uvm.o nvidia-modeset.o nvidia-drm.o nvidia-peermem.o\n"},
		dir + "dkms.conf":        {Text: dkmsConf(version)},
	}
}

// dkmsConf is as dkms(8) wants it. All modules are made in one go.
func dkmsConf(version string) string {
	text := "PACKAGE_NAME=\"nvidia\"\nPACKAGE_VERSION=\"" + version + "\"\nAUTOINSTALL=\"yes\"\n" +
		"MAKE[0]=\"make -C ${kernel_source_dir} M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build modules\"\n" +
		"CLEAN=\"true\"\n"
	for i, name := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"} {
		text += fmt.Sprintf("BUILT_MODULE_NAME[%d]=%q\nDEST_MODULE_LOCATION[%[1]d]=\"/updates/dkms\"\n", i, name)
	}
	return text
}
