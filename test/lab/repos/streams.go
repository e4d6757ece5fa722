// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// stream is a module stream of dnf: packages outside the one that is enabled cannot be seen.
type stream struct {
	name    string
	version string // the beginning of the versions in it
	kmod    string // the package of kernel modules; "" for those that are precompiled
}

// streams are those of a set of driver versions: each branch's and two that go on with the newest, of open and of proprietary modules
// for DKMS, and the branch alone for precompiled ones. Source: NVIDIA driver installation guide, chapter Red Hat Enterprise Linux; the
// listings of RHEL 9's 580 name 580-open, 580-dkms and 580.
func streams(versions []string) []stream {
	const open, latest = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
	list := []stream{{"open-dkms", "", open}, {"latest-dkms", "", latest}}
	var branches []string
	for _, v := range versions {
		branches = append(branches, branch(v))
	}
	slices.Sort(branches)
	for _, b := range slices.Compact(branches) {
		list = append(list, stream{b + "-open", b + ".", open}, stream{b + "-dkms", b + ".", latest}, stream{b, b + ".", ""})
	}
	return list
}

// modules is the index of streams for packages.
func modules(list []Package) string {
	var versions []string
	for _, p := range list {
		if modular(p) {
			versions = append(versions, upstream(p.Version))
		}
	}
	var text strings.Builder
	for _, s := range streams(versions) {
		var artifacts []string
		for _, p := range list {
			if modular(p) && s.has(p) {
				arch := p.Arch
				if arch == "" {
					arch = "x86_64"
				}
				artifacts = append(artifacts, fmt.Sprintf("    - %s-%s.%s\n", p.Name, p.Version, arch))
			}
		}
		profile := "nvidia-driver-cuda"
		if s.kmod != "" {
			profile += ", " + s.kmod
		}
		slices.Sort(artifacts)
		if s.kmod == "" && !slices.ContainsFunc(artifacts, func(a string) bool { return strings.Contains(a, "- kmod-nvidia-") }) {
			continue // no precompiled modules of this branch are listed
		}
		// A context is eight letters which tell builds of a stream for several platforms apart.
		fmt.Fprintf(&text, `---
document: modulemd
version: 2
data:
  name: nvidia-driver
  stream: "%s"
  version: 20260101000000
  context: "12345678"
  arch: x86_64
  summary: NVIDIA's in tests
  description: NVIDIA's in tests
  license: {module: [Apache-2.0]}
  dependencies:
  - requires: {platform: [el9]}
  profiles:
    default: {rpms: [%s]}
  artifacts:
    rpms:
%s`, s.name, profile, strings.Join(artifacts, ""))
	}
	return text.String()
}

// has tells whether a stream has a package.
func (s stream) has(p Package) bool {
	if !strings.HasPrefix(upstream(p.Version), s.version) {
		return false
	}
	switch {
	case p.Stream != "":
		return s.kmod == "" && s.name == p.Stream
	case strings.HasPrefix(p.Name, "kmod-"):
		return p.Name == s.kmod
	case p.Name == "nvidia-open":
		return s.kmod == "kmod-nvidia-open-dkms"
	case p.Name == "cuda-drivers":
		return s.kmod == "kmod-nvidia-latest-dkms"
	}
	return true
}

var modularVersion = regexp.MustCompile(`^3:\d{3}\.`)

// modular tells a package that is in streams: those of the driver, not its companions. They have the epoch 3.
func modular(p Package) bool { return modularVersion.MatchString(p.Version) || p.Stream != "" }
