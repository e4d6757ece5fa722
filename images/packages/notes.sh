#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints a release's notes, the section of its version in CHANGELOG.md: sh notes.sh VERSION. It runs at the top of the source.
set -eu
version=$1
notes=$(awk -v heading="## $version" '$0 == heading || index($0, heading " ") == 1 {on = 1; next} /^## / {on = 0} on' CHANGELOG.md)
[ -n "$notes" ] || { echo "notes.sh: CHANGELOG.md has no section \"## $version\": rename \"## Unreleased\" before the tag" >&2; exit 1; }
printf '%s\n' "$notes"
