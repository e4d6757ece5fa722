#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes of a folder of packages a repository for apt and one for dnf, as a web server shows them: sh repository.sh PACKAGES OUT
# REPOSITORY_KEY is the OpenPGP key that signs both, as gpg --armor --export-secret-keys prints it, and REPOSITORY_URL where the server
# shows the folder. It needs apt-ftparchive, createrepo_c and gpg.
set -eu
packages=$1 out=$2
: "${REPOSITORY_URL:?is the URL at which a server shows the folder, such as https://packages.example/gpuadm}"
: "${REPOSITORY_KEY:?is the key that signs the repositories, as gpg --armor --export-secret-keys prints it}"
export GNUPGHOME
GNUPGHOME=$(mktemp -d)
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME"' EXIT
printf '%s\n' "$REPOSITORY_KEY" | gpg --batch --quiet --import
rm -rf "$out"
mkdir -p "$out/apt" "$out/dnf"
cp "$packages"/*.deb "$out/apt/"
cp "$packages"/*.rpm "$out/dnf/"
gpg --batch --export >"$out/gpuadm.gpg"
gpg --batch --armor --export >"$out/gpuadm.asc"
# A flat repository: its one index has all architectures. Source: DebianRepository/Format in Debian's wiki.
(
  cd "$out/apt"
  apt-ftparchive packages . >Packages
  gzip --keep --no-name Packages
  apt-ftparchive -o APT::FTPArchive::Release::Origin=gpuadm -o APT::FTPArchive::Release::Label=gpuadm release . >"$GNUPGHOME/Release"
  mv "$GNUPGHOME/Release" Release
  gpg --batch --clearsign --output InRelease Release
)
# The signed repomd.xml has the checksums of the lists, and these have those of the packages: repo_gpgcheck=1, gpgcheck=0.
createrepo_c --quiet "$out/dnf"
gpg --batch --armor --detach-sign "$out/dnf/repodata/repomd.xml"
cat >"$out/gpuadm.sources" <<END
Types: deb
URIs: $REPOSITORY_URL/apt
Suites: ./
Signed-By: /etc/apt/keyrings/gpuadm.gpg
END
cat >"$out/gpuadm.repo" <<END
[gpuadm]
name=gpuadm
baseurl=$REPOSITORY_URL/dnf
repo_gpgcheck=1
gpgcheck=0
gpgkey=$REPOSITORY_URL/gpuadm.asc
END
