#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packer runs it as root on the machine that becomes the image. The files are where the file provisioner has put them.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes /tmp/gpuadm.deb
install -m 0644 /tmp/node.toml /etc/gpuadm/node.toml
gpuadm bake --gpu "$GPU" --seal
