#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rehearses a release on this machine, with a registry and a key that live as long as it runs: sh release-dry.sh VERSION CRANE…
# It makes and pushes what .github/workflows/release.yml does, and verifies and installs it as docs/install.md tells a user to. What only
# the forge can do is left out: the signature without a key, the attestations, the release's page. Needs apt-utils, createrepo-c, gpg, lintian,
# rpm, rpmlint.
set -eu
version=$1
shift
for needed in apt-ftparchive:apt-utils createrepo_c:createrepo-c gpg:gpg gpgconf:gpgconf lintian:lintian rpmlint:rpmlint rpm:rpm; do
  command -v "${needed%%:*}" >/dev/null || { echo "release-dry: ${needed%%:*} is missing; install ${needed#*:}" >&2; exit 1; }
done
step() { printf '\n== %s\n' "$*"; }

at=$(mktemp -d)
registry=
end() {
  [ -z "$registry" ] || kill "$registry"
  GNUPGHOME="$at/gpg" gpgconf --kill all
  rm -rf "$at"
}
trap end EXIT

step "a registry on this machine"
mkfifo "$at/said"
exec 3<>"$at/said" # its reader, also after the first line
GOBIN="$at" "${GO:-go}" install "$1"
"$at/crane" registry serve --address 127.0.0.1:0 >"$at/said" 2>&1 &
registry=$!
# Its first line ends with the port: "serving on port 34567".
read -r said <&3
image=127.0.0.1:${said##* }/gpuadm
echo "$image"

step "make dist"
make --no-print-directory dist VERSION="$version" IMAGE="$image"

step "the packages' form"
lintian --fail-on error bin/dist/*.deb
rpmlint --config images/packages/rpmlint.toml bin/dist/*.rpm

step "push, and pull by the digest that the chart names"
sh images/packages/push.sh "$image" "$version" bin/gpuadm-image.tar "$at/crane" >"$at/pushed"
digest=$(sed -n 's/^digest=//p' "$at/pushed")
tar -xzOf "bin/dist/gpuadm-chart-$version.tgz" gpuadm/values.yaml | grep -F "$image@$digest"
"$at/crane" pull "$image@$digest" "$at/pulled.tar"

step "sign and verify the checksums"
mkdir -m 700 "$at/gpg"
GNUPGHOME="$at/gpg" gpg --batch --quiet --passphrase '' --quick-generate-key 'gpuadm rehearsal <rehearsal@example.invalid>' ed25519 sign 1d
key=$(GNUPGHOME="$at/gpg" gpg --batch --armor --export-secret-keys)
(
  cd bin/dist
  GNUPGHOME="$at/gpg" gpg --batch --yes --armor --output "$at/SHA256SUMS.asc" --detach-sign SHA256SUMS
  GNUPGHOME="$at/gpg" gpg --batch --quiet --verify "$at/SHA256SUMS.asc" SHA256SUMS
  sha256sum --check --strict --ignore-missing SHA256SUMS
)

step "make repository"
REPOSITORY_KEY=$key REPOSITORY_URL="file:$PWD/bin/repository" \
  make --no-print-directory repository PACKAGES=bin/dist

step "apt reads the repository, and downloads the package that was signed"
mkdir -p "$at/apt/lists/partial" "$at/apt/archives/partial" "$at/apt/sources" "$at/apt/preferences.d"
sed "s|^Signed-By: .*|Signed-By: $PWD/bin/repository/gpuadm.gpg|" bin/repository/gpuadm.sources >"$at/apt/sources/gpuadm.sources"
: >"$at/apt/status"
apt="-o Dir::Etc=$at/apt -o Dir::Etc::SourceParts=$at/apt/sources -o Dir::State=$at/apt -o Dir::State::status=$at/apt/status"
apt="$apt -o Dir::Cache=$at/apt -o APT::Sandbox::User=root -o Acquire::Languages=none"
apt-get $apt update
(cd "$at" && apt-get $apt download gpuadm)
deb=$(ls "$at"/gpuadm_*.deb)
cmp "$deb" "bin/dist/$(basename "$deb")"

step "dnf's index is signed, and names the package"
GNUPGHOME="$at/gpg" gpg --batch --quiet --verify bin/repository/dnf/repodata/repomd.xml.asc bin/repository/dnf/repodata/repomd.xml
rpm=$(basename bin/dist/gpuadm-"$version"-1.*.rpm)
zcat bin/repository/dnf/repodata/*primary.xml.gz | grep -F "href=\"$rpm\""

step "the notes"
if ! sh images/packages/notes.sh "$version"; then
  sh images/packages/notes.sh Unreleased >/dev/null
  echo "All else passed. What was made is in bin/dist and bin/repository; the notes of the release are still to be named."
  exit 0
fi
echo
echo "The rehearsal of $version passed. What was made is in bin/dist and bin/repository."
