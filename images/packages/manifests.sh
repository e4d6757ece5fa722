#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a release's chart and manifests, which name the image by the digest of its archive: sh manifests.sh IMAGE VERSION ARCHIVE OUT
# It runs at the top of the source.
set -eu
image=$1 version=$2 archive=$3 out=$4
digest=$(tar -xOf "$archive" index.json | sed -n 's/.*"digest": *"\(sha256:[0-9a-f]\{64\}\)".*/\1/p')
[ "${#digest}" = 71 ] || { echo "manifests.sh: cannot read one digest from $archive" >&2; exit 1; }
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
cp -r images/chart "$at/gpuadm"
sed -i "s|gpuadm@sha256:0\{64\}|$image@$digest|" "$at/gpuadm/values.yaml"
sed -i "s|^version: .*|version: $version\nappVersion: \"$version\"|" "$at/gpuadm/Chart.yaml"
chmod -R u=rwX,go=rX "$at/gpuadm"
tar --create --directory="$at" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" gpuadm | gzip --no-name >"$out/gpuadm-chart-$version.tgz"
for name in rbac eks aks gke onprem; do
  sed "s|gpuadm@sha256:0\{64\}|$image@$digest|" "images/daemonset/$name.yaml" >"$out/gpuadm-$name.yaml"
done
for file in "$at/gpuadm/values.yaml" "$out"/gpuadm-eks.yaml "$out"/gpuadm-aks.yaml "$out"/gpuadm-gke.yaml "$out"/gpuadm-onprem.yaml; do
  grep -q "$image@$digest" "$file" || { echo "manifests.sh: $file does not name the image" >&2; exit 1; }
done
