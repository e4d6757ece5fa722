#!/bin/sh
# What stands in for the kernel's part of the driver's modules, on a machine whose kernel loads none:
# it is modprobe(8), rmmod(8) and, as "boot", what a boot loads. Of a loaded module it shows what
# recorded machines show: test/hosts/al2023-eks-nvidia.txtar has /sys/module/nvidia and
# /proc/driver/nvidia. The rest of /sys/module: Documentation/ABI/testing/sysfs-module in the kernel's
# tree. GPUs are bound as in their uevent: pci_uevent in drivers/pci/pci-driver.c there.
set -e
folder=/lib/modules/$(uname -r)
modules=/sys/module
bus=/run/lab-pci # a copy of the lab's: no power cut tears it

bind() { # to a driver, or to none
	for uevent in "$bus"/*/uevent; do
		grep -q '^PCI_ID=10DE' "$uevent" || continue
		grep -v '^DRIVER=' "$uevent" >/run/uevent || true
		if [ -n "$1" ]; then echo "DRIVER=$1" >>/run/uevent; fi
		cat /run/uevent >"$uevent"
	done
}

show() { # a module of a version as loaded
	mkdir -p "$modules/$1/holders"
	echo "$2" >"$modules/$1/version"
	echo live >"$modules/$1/initstate"
	echo 0 >"$modules/$1/refcnt"
}

load() {
	if [ -e "$modules/$1/refcnt" ]; then return; fi
	file=$(sed -n "s,^\(.*/$1\.ko\):.*,\1,p" "$folder/modules.dep")
	if [ -z "$file" ]; then
		echo "modprobe: FATAL: Module $1 not found in directory $folder" >&2
		exit 1
	fi
	version=$(tr '\0' '\n' <"$folder/$file" | sed -n 's/^.*version=\([0-9]\)/\1/p' | head -1)
	mkdir -p /run/driver/nvidia
	echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  $version  Release Build  (root@node)" >/run/driver/nvidia/version
	bind nvidia
	fakenvml driver --init SUCCESS
	show "$1" "$version"
}

unload() {
	rm -rf "${modules:?}/$1"
	rm -rf /run/driver/nvidia
	bind ""
	fakenvml driver --init DRIVER_NOT_LOADED
}

for last; do :; done
case ${0##*/} in
modprobe) load "$last" ;;
rmmod) unload "$last" ;;
*)
	mount -o remount,rw /sys
	mkdir -p /run/driver
	if [ ! -d "$bus" ]; then
		cp -r /usr/lib/gpuadm-lab/pci/sys "$bus"
		mount --bind "$bus" /sys/bus/pci/devices
	fi
	mountpoint -q /proc/driver || mount --bind /run/driver /proc/driver
	unload nvidia
	if [ -e /etc/lab-nouveau ] && ! grep -qs '^blacklist nouveau' /etc/modprobe.d/*; then
		show nouveau ""
		bind nouveau
		exit
	fi
	for name in $(grep -hsv '^#' /etc/modules-load.d/nvidia.conf); do load "$name"; done
	;;
esac
