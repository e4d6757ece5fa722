#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# A node image from a plain root folder: Debian by mmdebstrap where ROOT is empty, any distribution where it is there already.
#
#   sh bake.sh ROOT NODE.TOML [flags of gpuadm bake]       as root; DISK=node.img makes a file system of it, too
#   dnf --installroot=ROOT ... install ...                 is the same first step for RHEL and its relatives
set -eu
root=$1 spec=$2
shift 2

if [ ! -e "$root/etc/os-release" ]; then
	mmdebstrap --variant=important --components=main,contrib,non-free,non-free-firmware \
		--include=linux-image-cloud-amd64,linux-headers-cloud-amd64,systemd-sysv,dbus,ca-certificates,gpg,containerd,cloud-init \
		"${SUITE:-bookworm}" "$root"
fi
mkdir -p "$root/etc/gpuadm"
cp "$spec" "$root/etc/gpuadm/node.toml"
"${GPUADM:-gpuadm}" bake --root "$root" --seal "$@"

# mke2fs keeps the times by which gpuadm sees that nothing is to be made again; tar does not.
if [ -n "${DISK:-}" ]; then
	mke2fs -q -t ext4 -d "$root" "$DISK" "${SIZE:-8G}"
fi
