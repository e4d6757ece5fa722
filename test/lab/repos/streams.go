// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// stream is a module stream of dnf: packages outside the one that is enabled cannot be seen.
type stream struct {
	name    string
	version string // the beginning of the versions in it
	kmod    string
}

// streams are those that NVIDIA has for RHEL 8 and 9, without the ones of precompiled modules.
func streams() []stream {
	return []stream{
		{"open-dkms", "", "kmod-nvidia-open-dkms"},
		{"latest-dkms", "", "kmod-nvidia-latest-dkms"},
		{"570-open", "570.", "kmod-nvidia-open-dkms"},
		{"580-open", "580.", "kmod-nvidia-open-dkms"},
		{"580-dkms", "580.", "kmod-nvidia-latest-dkms"},
		{"590-open", "590.", "kmod-nvidia-open-dkms"},
	}
}

// modules is the index of streams for the packages whose files are given.
func modules(files []string) string {
	var text strings.Builder
	for _, s := range streams() {
		var artifacts []string
		for _, file := range files {
			name, version, ok := modular(file)
			kmod := strings.HasPrefix(name, "kmod-")
			if ok && strings.HasPrefix(version, s.version) && (!kmod || name == s.kmod) &&
				(name != "nvidia-open" || s.kmod == "kmod-nvidia-open-dkms") && (name != "cuda-drivers" || s.kmod == "kmod-nvidia-latest-dkms") {
				artifacts = append(artifacts, fmt.Sprintf("    - %s-%s.x86_64\n", name, RPMVersion(version)))
			}
		}
		slices.Sort(artifacts)
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
  summary: stands in for NVIDIA's in tests
  description: stands in for NVIDIA's in tests
  license: {module: [Apache-2.0]}
  dependencies:
  - requires: {platform: [el9]}
  profiles:
    default: {rpms: [nvidia-driver, nvidia-driver-cuda, %[2]s]}
    ks: {rpms: [nvidia-driver-cuda, %[2]s]}
    src: {rpms: [%[2]s]}
  artifacts:
    rpms:
%[3]s`, s.name, s.kmod, strings.Join(artifacts, ""))
	}
	return text.String()
}

// modular tells the name and version of a package that is in streams: those of the driver, not its companions.
func modular(file string) (name, version string, ok bool) {
	nvr, ok := strings.CutSuffix(filepath.Base(file), "-"+rpmRelease+".x86_64.rpm")
	i := strings.LastIndex(nvr, "-")
	if !ok || i < 0 {
		return "", "", false
	}
	return nvr[:i], nvr[i+1:], true
}
