#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Pushes the image's archive to a registry, and prints digest=sha256:…: sh push.sh IMAGE VERSION ARCHIVE CRANE…
# With REGISTRY_TOKEN, the password of REGISTRY_USER there, crane logs in first, for the signature's program, too.
set -eu
image=$1 version=$2 archive=$3
shift 3
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
mkdir "$at/layout"
tar -xf "$archive" -C "$at/layout"
if [ -n "${REGISTRY_TOKEN-}" ]; then
  printf '%s' "$REGISTRY_TOKEN" | "$@" auth login "${image%%/*}" --username "${REGISTRY_USER-gpuadm}" --password-stdin >&2
fi
pushed=$("$@" push "$at/layout" "$image:$version")
digest=${pushed##*@}
# The chart names this one.
grep -q "\"$digest\"" "$at/layout/index.json" || { echo "push.sh: the registry has $pushed, which is not the archive's" >&2; exit 1; }
echo "digest=$digest"
