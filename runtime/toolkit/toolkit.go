// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package toolkit has what containers get the GPUs by: the packages of the NVIDIA Container Toolkit and where they come from, its
// configuration, its CDI spec, and links to the device nodes.
package toolkit

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// signingKey is the fingerprint of the key that signs the NVIDIA Container Toolkit's repositories; many projects pin
// the same, among them https://github.com/GoogleCloudDataproc/initialization-actions.
const signingKey = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

// Repository is where the NVIDIA Container Toolkit comes from: its own repository, or the mirror that the spec
// names. manager is apt or dnf, arch as facts say it.
// Source: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
func Repository(t spec.Toolkit, manager, arch string) packages.Repository {
	const base = "https://nvidia.github.io/libnvidia-container/"
	r := packages.Repository{
		ID: "toolkit", About: "NVIDIA Container Toolkit",
		URL: t.Repo.URL, Key: t.Repo.Key, Fingerprint: t.Repo.Fingerprint,
	}
	if manager == "dnf" { // as the .repo file that NVIDIA publishes says: the packages are not, and a mirror's are the same
		r.Signed = packages.SignedMetadata
	}
	r.Signed = packages.SignedAs(t.Repo.Signature, r.Signed)
	if r.URL == "" {
		r.URL = base + "stable/deb/" + arch
		if manager == "dnf" {
			r.URL = base + "stable/rpm/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
		}
	}
	if r.Key == "" {
		r.Key = base + "gpgkey"
	}
	if r.Fingerprint == "" {
		r.Fingerprint = signingKey
	}
	if t.Version != "" {
		r.Pins = []packages.Pin{packages.KeepAt(pattern(t.Version), packageNames()...)}
	}
	return r
}

// Packages wants the toolkit's packages, all in one version, and held there.
func Packages(t spec.Toolkit) map[string]packages.State {
	version := "*"
	if t.Version != "" {
		version = pattern(t.Version)
	}
	want := map[string]packages.State{}
	for _, name := range packageNames() {
		want[name] = packages.State{Version: "toolkit=" + version, Held: t.Version != ""}
	}
	return want
}

// packageNames depend on each other in exactly one version, and are called alike for apt and dnf.
func packageNames() []string {
	return []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
}

// pattern matches a version, or all of a branch: 1.18.0, 1.18.*.
func pattern(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version
}
