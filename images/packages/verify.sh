#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Verifies the files of a release in the current folder: sh verify.sh gpuadm.pub
set -eu
if [ $# != 1 ]; then echo "usage: verify.sh KEY, the file with the maintainer's public key" >&2; exit 2; fi
minisign -V -p "$1" -m SHA256SUMS
sha256sum --check --strict --ignore-missing SHA256SUMS
