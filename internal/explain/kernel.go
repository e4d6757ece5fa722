// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/things"
)

// kernel has what the kernel, its NVIDIA modules, modprobe and NVIDIA's installer print.
func kernel() []Text {
	const secureBoot = "mokutil --sb-state; mokutil --list-enrolled"
	return []Text{
		{
			Name: "api-mismatch", By: "the kernel", Phrases: []string{"api mismatch the client"},
			What:    "The loaded module nvidia is of another version than the program's libraries: an upgrade came, and the old module stayed loaded.",
			Matters: "Nothing new can use a GPU.",
			Try:     []string{"gpuadm explain nvml-mismatch: the same fault as nvidia-smi shows it", "gpuadm plan driver; else drain the node and reboot"},
			Sources: []string{"https://github.com/stackhpc/ansible-slurm-appliance/issues/287", "https://github.com/NVIDIA/nvidia-docker/issues/182"},
		},
		ofXid("off-the-bus", "fallen off the bus", "https://github.com/NVIDIA/NVSentinel/issues/155", "79"),
		ofXid("gsp-exception", "gsp task exception|timeout waiting for rpc from gsp|gsp rpc timeout", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/829", "119", "120"),
		{
			Name: "gsp-start", By: "the kernel", Phrases: []string{"cannot initialize gsp firmware rm|unexpected wpr2 already up"},
			What:    "The GPU was left in a bad state by an earlier start, and its firmware cannot start again without a reset.",
			Matters: "The GPU is on the bus and does not work.",
			Try:     []string{"reset the GPU: kubectl drain NODE, then sudo nvidia-smi --gpu-reset -i GPU, or reboot", "if that does not help: power the machine off and on; of a virtual machine, the host"},
			Sources: []string{"https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1230", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1058"},
		},
		{
			Name: "adapter-failed", By: "the kernel", Phrases: []string{"rminitadapter failed"},
			What:    "The driver found the GPU and could not start it. The lines before this one say why.",
			Matters: "nvidia-smi says \"No devices were found\" or leaves the GPU out.",
			Try:     []string{"dmesg | grep -i nvrm: read the lines before, and explain those", "drain the node and reboot"},
			Sources: []string{"https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1230", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789"},
		},
		{
			Name: "gsp-firmware", By: "the kernel", Phrases: []string{"direct firmware load for nvidia|no firmware image found", "failed with error|rmfetchgsprmimages"},
			What:    "The firmware of exactly the module's version is not in /lib/firmware/nvidia: its package is not installed, or it was upgraded and the module was not.",
			Matters: "No GPU starts.",
			Try:     []string{"ls /lib/firmware/nvidia; modinfo -F version nvidia", "gpuadm plan driver: all parts of the driver in one version, then a reboot"},
			Sources: []string{"https://github.com/ublue-os/bazzite/issues/2668", "https://github.com/endlessm/eos-meta/pull/811"},
		},
		{
			Name: "nouveau", By: "the kernel", Phrases: []string{"nvidia probe routine was not called for"},
			What:    "Another driver, most often nouveau, took the GPU first.",
			Matters: "The module nvidia finds no GPU and does not stay loaded.",
			Try:     []string{"lspci -nnk -d 10de: shows the driver in use", "gpuadm plan driver: it blocks nouveau, rebuilds the initramfs and says that a reboot is needed"},
			Sources: []string{"https://github.com/NixOS/nixpkgs/issues/16711", "https://github.com/mattshma/bigdata/issues/133"},
		},
		{
			Name: "already-bound", By: "the kernel", Phrases: []string{"is already bound to novacore|is already bound to nouveau|is already bound to vfio pci"},
			What:    "The named driver took the GPU first: nouveau or its successor nova at boot, or vfio-pci for a virtual machine.",
			Matters: "The module nvidia finds no GPU.",
			Try:     []string{"block nova_core and nouveau in /etc/modprobe.d, rebuild the initramfs, drain the node and reboot", "vfio-pci: the GPU was given to a guest on purpose; find its id in /etc/modprobe.d and /proc/cmdline"},
			Sources: []string{"https://github.com/beclab/Olares/pull/3963", "https://github.com/Etersoft/eepm/pull/440"},
		},
		{
			Name: "unsupported-gpu", By: "the kernel", Phrases: []string{"installed in this system is not supported by"},
			What:    "This driver does not support the GPU: it is too old or too new for it, or the wrong kind of module (open or proprietary).",
			Matters: "No GPU starts.",
			Try:     []string{"gpuadm plan driver with modules = \"auto\": the catalogue knows which GPUs need the open modules, and which cannot have them", "in a guest of a confidential VM: check the GPU's mode on the host"},
			Sources: []string{"https://github.com/NVIDIA/nvtrust/issues/55", "https://github.com/negativo17/nvidia-driver/issues/158"},
		},
		{
			Name: "key-rejected", By: "modprobe", Phrases: []string{"key was rejected by service"},
			What:    "Secure Boot is on, and the module is signed by a key that this machine does not trust.",
			Matters: "The module does not load, so there is no GPU.",
			Try:     []string{secureBoot, "enrol the key (mokutil --import, then confirm it at the next boot), or use the distribution's signed modules: build = \"precompiled\" in [driver]"},
			Sources: []string{"https://github.com/tuxedocomputers/tuxedo-keyboard/issues/186", "https://github.com/awesometic/realtek-r8126-dkms/issues/3"},
		},
		{
			Name: "key-missing", By: "modprobe", Phrases: []string{"required key not available"},
			What:    "Secure Boot is on, and the module is not signed, or by an unknown key.",
			Matters: "The module does not load, so there is no GPU.",
			Try:     []string{secureBoot, "sign the module by an enrolled key, or use the distribution's signed modules: build = \"precompiled\" in [driver]"},
			Sources: []string{"https://github.com/hhfeuer/nvhda/issues/8", "https://github.com/larixer/hid-asus-dkms/issues/23"},
		},
		{
			Name: "unavailable-key", By: "the kernel", Phrases: []string{"loading of module with unavailable key is rejected"},
			What:    "Secure Boot is on, and the kernel does not have the key that signed the module.",
			Matters: "The module does not load.",
			Try:     []string{secureBoot, "gpuadm explain key-rejected"},
			Sources: []string{"https://github.com/JafarAkhondali/acer-predator-turbo-and-rgb-keyboard-linux-module/issues/113", "https://github.com/linux-surface/linux-surface/issues/906"},
		},
		{
			Name: "module-not-found", By: "modprobe", Phrases: []string{"fatal module nvidia", "not found in directory"},
			What:    "There is no module nvidia for the kernel that runs: the kernel was upgraded without it, or its build failed.",
			Matters: "The machine has no working GPU since the last reboot.",
			Try:     []string{"uname -r; dkms status; ls /lib/modules/*/updates/dkms", "gpuadm plan driver: headers, build and module for this kernel"},
			Sources: []string{"https://github.com/compiler-explorer/infra/issues/1413", "https://github.com/Witko/nvidia-xrun/issues/144"},
		},
		{
			Name: "insert-no-device", By: "modprobe", Phrases: []string{"inserting nvidia|could not insert nvidia|inserting nvidia current", "no such device"},
			What:    "The module started and found no GPU that it may have: another driver has it, it is not supported, or there is none.",
			Matters: "There is no working GPU. dmesg has the reason.",
			Try:     []string{"lspci -nnk -d 10de:; dmesg | grep -i nvrm, and explain that line"},
			Sources: []string{"https://github.com/MrMEEE/bumblebee-Old-and-abbandoned/issues/196", "https://github.com/Bumblebee-Project/Bumblebee/issues/810"},
		},
		{
			Name: "installer-load", By: "nvidia-installer", Phrases: []string{"unable to load the kernel module nvidia"},
			What:    "The modules were built and the kernel refused them: Secure Boot, another driver on the GPU, or a GPU that the driver does not support.",
			Matters: "The installer stops; the machine has no driver.",
			Try:     []string{"dmesg | grep -i -e nvrm -e lockdown -e 'module verification', and explain that line", "less /var/log/nvidia-installer.log"},
			Sources: []string{"https://github.com/NVIDIA/gpu-driver-container/issues/44", "https://github.com/NVIDIA/gpu-operator/issues/8"},
		},
	}
}

// ofXid is a text that the kernel prints with one of these Xids, or without its number. What they mean is things.Xids'.
func ofXid(name, phrase, report string, numbers ...string) Text {
	t := Text{
		Name: name, By: "the kernel (Xid " + strings.Join(numbers, ", ") + ")", Phrases: []string{phrase},
		Matters: "The programs on this GPU have failed.",
		Sources: []string{report, things.XidCatalogue},
	}
	for i, number := range numbers {
		x := things.Xids()[number]
		if i > 0 {
			t.What += "; "
		}
		t.What += "Xid " + number + ": " + x.Means
		if !slices.Contains(t.Try, x.Action) {
			t.Try = append(t.Try, x.Action)
		}
	}
	t.What += "."
	return t
}
