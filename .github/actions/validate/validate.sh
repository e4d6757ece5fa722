#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings a release of gpuadm, verifies where it comes from, and validates each of FILES; action.yml has the variables.
set -eu
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=amd64 ;; esac
archive=gpuadm-$VERSION-linux-$arch.tar.gz
gh release download "v$VERSION" --repo "$REPOSITORY" --pattern "$archive" --dir "$at"
gh attestation verify "$at/$archive" --repo "$REPOSITORY" >&2
tar -xzf "$at/$archive" -C "$at"
gpuadm=$(find "$at" -path '*usr/bin/gpuadm')
bad=0
while IFS= read -r file; do
  [ -n "$file" ] || continue
  set -- validate -f "$file"
  [ -z "$OS" ] || set -- "$@" --os "$OS"
  [ -z "$GPU" ] || set -- "$@" --gpu "$GPU"
  "$gpuadm" "$@" || {
    bad=1
    "$gpuadm" "$@" -o json | jq -r 'if .spec then .spec[] | "::error file=\(.file),line=\(.line),col=\(.column)::\(.message)" else "::error::\(.error)" end'
  }
done <<END
$FILES
END
exit "$bad"
