// SPDX-License-Identifier: Apache-2.0

// Package toolkit has what containers get the GPUs by: the packages of the NVIDIA Container Toolkit
// and their repository, its configuration, its CDI spec, and links to the device nodes.
package toolkit

import (
	"cmp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Stage keeps what containers get the GPUs by: the toolkit's configuration and CDI spec, and links
// to the device nodes. It comes after stage mig, since the CDI spec names the partitions and
// nothing updates it when they change. specFolders are the folders in which the engine of pods
// looks for CDI specs; nil for the usual ones.
func Stage(specFolders func(facts.Facts) []string) converge.Stage {
	return converge.Stage{
		Name:  "toolkit",
		About: "configures the container toolkit, keeps its CDI spec current, and links to the device nodes",
		Wants: wants,
		// The CDI spec names the driver's libraries.
		Follows: []string{"packages", "modules"},
		Notes: func(v host.View, s spec.Spec, f facts.Facts) []string {
			return notes(v, s, f, specFolders(f))
		},
	}
}

func wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	return append(configWants(s), cdiWants(s, f)...), nil
}

func notes(v host.View, s spec.Spec, f facts.Facts, folders []string) []string {
	list := append(configNotes(s), cdiNotes(v, s, f, folders)...)
	if s.Has("runtime") || s.Has("toolkit") {
		list = append(list, Faults(v, f)...)
	}
	return list
}

// signingKey is the fingerprint of the key that signs the NVIDIA Container Toolkit's repositories;
// many projects pin the same, among them
// https://github.com/GoogleCloudDataproc/initialization-actions.
const signingKey = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

// Repository is where the NVIDIA Container Toolkit comes from: its own repository, or the mirror
// that the spec names. manager is apt or dnf, arch as facts say it.
// Source:
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
func Repository(t spec.Toolkit, manager, arch string) packages.Repository {
	const base = "https://nvidia.github.io/libnvidia-container/"
	r := packages.Repository{
		ID:          "toolkit",
		About:       "NVIDIA Container Toolkit",
		URL:         base + "stable/deb/" + arch,
		Key:         cmp.Or(t.Repo.Key, base+"gpgkey"),
		Fingerprint: cmp.Or(t.Repo.Fingerprint, signingKey),
	}
	if manager == "dnf" {
		r.URL = base + "stable/rpm/" + rpmArch(arch)
		// NVIDIA's own .repo file says so: the packages are not signed, nor are a mirror's.
		r.Signed = packages.SignedMetadata
	}

	r.URL = cmp.Or(t.Repo.URL, r.URL)
	r.Signed = packages.SignedAs(t.Repo.Signature, r.Signed)
	if t.Version != "" {
		r.Pins = []packages.Pin{packages.KeepAt(pattern(t.Version), packageNames()...)}
	}
	return r
}

// rpmArch is rpm's word for an architecture, "" if NVIDIA has no packages for it.
func rpmArch(arch string) string {
	switch arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return ""
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

// packageNames are the same for apt and dnf. The packages depend on each other in exactly one
// version.
func packageNames() []string {
	return []string{
		"nvidia-container-toolkit", "nvidia-container-toolkit-base",
		"libnvidia-container-tools", "libnvidia-container1",
	}
}

// pattern matches a version, or all of a branch: 1.18.0, 1.18.*.
func pattern(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version
}
