// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// toolkitKey is the fingerprint of the key that signs the NVIDIA Container Toolkit's repositories; many projects pin
// the same, among them https://github.com/GoogleCloudDataproc/initialization-actions.
const toolkitKey = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

// ToolkitRepository is where the NVIDIA Container Toolkit comes from: its own repository, or the mirror that the spec
// names. manager is apt or dnf, arch as facts say it.
// Source: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
func ToolkitRepository(t spec.Toolkit, manager, arch string) packages.Repository {
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
		r.Fingerprint = toolkitKey
	}
	if t.Version != "" {
		r.Pins = []packages.Pin{packages.KeepAt(pattern(t.Version), toolkitPackages()...)}
	}
	return r
}

// ToolkitPackages wants the toolkit's packages, all in one version, and held there.
func ToolkitPackages(t spec.Toolkit) map[string]packages.State {
	version := "*"
	if t.Version != "" {
		version = pattern(t.Version)
	}
	want := map[string]packages.State{}
	for _, name := range toolkitPackages() {
		want[name] = packages.State{Version: "toolkit=" + version, Held: t.Version != ""}
	}
	return want
}

// toolkitPackages depend on each other in exactly one version, and are called alike for apt and dnf.
func toolkitPackages() []string {
	return []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
}

// pattern matches a version, or all of a branch: 1.18.0, 1.18.*.
func pattern(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version
}
