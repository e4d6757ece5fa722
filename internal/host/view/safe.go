// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/mask"
)

// safePaths are the files that may leave the machine with their content in a recording, by path.Match; "/**" is all below.
// All else is recorded as a name and a size. A name is added here only if no secret belongs into such a file; where one
// can be in it by its format (a registry's password), package mask takes it out.
func safePaths() []string {
	return append(kubeletFlags(),
		"/etc/os-release", "/usr/lib/os-release", "/etc/*-release", "/etc/debian_version",

		"/proc/version", "/proc/cmdline", "/proc/modules", "/proc/devices", "/proc/filesystems", "/proc/mounts", "/proc/self/mounts", "/proc/*/cgroup",
		"/proc/meminfo", "/proc/cpuinfo", "/proc/driver/nvidia/**", "/proc/driver/nvidia-*/**",
		"/proc/sys/kernel/osrelease", "/proc/sys/kernel/random/boot_id", "/proc/sys/net/ipv4/ip_forward",

		"/sys/bus/**", "/sys/devices/pci*/**", "/sys/module/**", "/sys/devices/system/**", "/sys/fs/cgroup/cgroup.controllers",
		"/sys/fs/selinux/enforce", "/sys/kernel/security/lockdown", "/sys/firmware/efi/efivars/SecureBoot-*", "/sys/hypervisor/type",
		"/sys/devices/virtual/dmi/id/*_vendor", "/sys/devices/virtual/dmi/id/*_name", "/sys/devices/virtual/dmi/id/*_version",
		"/sys/devices/virtual/dmi/id/chassis_type", "/sys/devices/virtual/dmi/id/chassis_asset_tag",
		"/sys/class/dmi/id/*_vendor", "/sys/class/dmi/id/*_name", "/sys/class/dmi/id/*_version", "/sys/class/dmi/id/chassis_asset_tag",

		"/*/containerd/*.toml", "/*/containerd/*/*.toml", "/etc/cri/*.toml", "/etc/cri/conf.d/*.toml", "/etc/crio/*.conf", "/etc/crio/crio.conf.d/*", "/etc/docker/daemon.json",
		"/var/lib/rancher/*/agent/etc/containerd/*", "/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/*.toml", "/run/k0s/*.toml", "/run/k0s/kubelet/config.yaml",
		"/var/snap/*/*/args/containerd*", "/var/snap/*/*/args/kubelet", "/etc/nvidia-container-runtime/*", "/etc/cdi/*", "/run/cdi/*",

		"/etc/systemd/system/**", "/run/systemd/system/**", "/usr/lib/systemd/system/**", "/lib/systemd/system/**", "/usr/local/lib/systemd/system/**",
		"/etc/modprobe.d/*", "/usr/lib/modprobe.d/*", "/etc/modules-load.d/*", "/etc/udev/rules.d/*", "/usr/lib/udev/rules.d/*",
		"/lib/modules/*/modules.*", "/usr/lib/modules/*/modules.*", "/boot/config-*",

		"/var/lib/dpkg/status", "/var/lib/dpkg/info/*.list", "/var/lib/apt/extended_states", "/etc/apt/sources.list", "/etc/apt/sources.list.d/*", "/etc/apt/preferences",
		"/etc/apt/preferences.d/*", "/etc/apt/keyrings/*", "/usr/share/keyrings/*", "/etc/yum.repos.d/*", "/etc/dnf/plugins/versionlock.list",
		"/etc/dnf/modules.d/*", "/etc/pki/rpm-gpg/*",

		"/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/config", "/home/kubernetes/kubelet-config.yaml", "/var/lib/rancher/*/agent/etc/kubelet.conf.d/*", "/etc/rancher/*/config.yaml", "/etc/rancher/*/config.yaml.d/*.yaml", "/etc/kubernetes/kubelet/*.json", "/etc/kubernetes/kubelet/*.d/*", "/etc/default/kubelet",
		"/etc/gpuadm/node.toml", "/etc/gpuadm/node.d/*.toml", "/var/lib/gpuadm/pins",
	)
}

// kubeletFlags are files of variables that have kubelet's flags and nothing else: without them a recording has no facts of kubelet.
// Package mask knows both forms. Sources: kubeadm's 10-kubeadm.conf; nodeadm's kubelet.service.
func kubeletFlags() []string {
	return []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/eks/kubelet/environment"}
}

// never are names in safe places that are not safe: serial numbers, identities, environment files. Those of K3s and RKE2, beside their
// units, say where the data folder is; package mask keeps no value of them but that of a variable that it knows.
func never(name string) bool {
	if slices.Contains(kubeletFlags(), name) {
		return false
	}
	base := path.Base(name)
	return strings.Contains(base, "serial") || strings.Contains(base, "uuid") || strings.Contains(base, "environ") ||
		base == "vpd" || strings.HasSuffix(base, ".env") && !strings.HasSuffix(base, ".service.env") || strings.HasSuffix(base, ".key")
}

// safe returns what of a file's content may be recorded.
func safe(name string, data []byte) ([]byte, bool) {
	if never(name) || !slices.ContainsFunc(safePaths(), func(pattern string) bool { return matches(pattern, name) }) {
		return nil, false
	}
	switch {
	case name == "/var/lib/dpkg/status" || name == "/var/lib/apt/extended_states":
		data = extract(data)
	case path.Base(name) == "chassis_asset_tag" && !cloudTag(string(data)):
		return nil, false
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return data, maybeBinary(name) // mask reads text only
	}
	if name == "/proc/cmdline" { // one line of many settings: each by itself
		settings := mask.Text(bytes.ReplaceAll(bytes.TrimSpace(data), []byte(" "), []byte("\n")))
		return append(bytes.ReplaceAll(settings, []byte("\n"), []byte(" ")), '\n'), true
	}
	return mask.File(name, data), true
}

// maybeBinary says in which safe places files may be binary.
func maybeBinary(name string) bool {
	return strings.HasPrefix(name, "/sys/") || strings.Contains(name, "/keyrings/") || strings.Contains(name, "/lib/modules/")
}

// matches is path.Match, and "/**" at the end matches all below.
func matches(pattern, name string) bool {
	if above, ok := strings.CutSuffix(pattern, "/**"); ok {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if ok, _ := path.Match(above, dir); ok {
				return true
			}
		}
		return false
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// cloudTag says whether a chassis' asset tag is one that a cloud gives all its machines; else it is an owner's inventory number.
func cloudTag(tag string) bool {
	switch strings.TrimSpace(tag) {
	case "7783-7084-3265-9085-8269-3286-77", "Amazon EC2", "OracleCloud.com":
		return true
	}
	return false
}

// knownPackages matches the packages that decide anything here.
func knownPackages() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^Package: .*(nvidia|cuda|containerd|docker|cri-|kube|runc|dkms|linux-(image|headers|modules|objects)|^Package: (gcc|make|libc6|systemd|kmod|initramfs-tools)$)`)
}

// extract keeps the paragraphs of a dpkg database that are about packages that gpuadm knows, without descriptions.
func extract(data []byte) []byte {
	known := knownPackages()
	prose := regexp.MustCompile(`(?m)^(Description|Conffiles|Maintainer|Homepage|Original-Maintainer):.*\n([ \t].*\n)*`)
	var kept [][]byte
	for paragraph := range bytes.SplitSeq(data, []byte("\n\n")) {
		if known.Match(paragraph) {
			paragraph = prose.ReplaceAll(append(bytes.Clone(paragraph), '\n'), nil)
			kept = append(kept, bytes.TrimSpace(paragraph))
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return append(bytes.Join(kept, []byte("\n\n")), "\n\n"...)
}

// kernelFile says whether a file is the kernel's: its times mean nothing.
func kernelFile(name string) bool {
	return strings.HasPrefix(name, "/proc/") || strings.HasPrefix(name, "/sys/") || strings.HasPrefix(name, "/dev/")
}

// safeCommand says whether a command's output may be recorded. Masking is done on top.
func safeCommand(argv []string) bool {
	switch path.Base(argv[0]) {
	case "apt-cache", "containerd", "crio", "ctr", "df", "dkms", "dnf", "docker", "dpkg", "dpkg-query", "findmnt", "getenforce", "kubelet", "lsmod", "lspci",
		"modinfo", "mokutil", "nvidia-ctk", "nvidia-smi", "rpm", "runc", "systemd-detect-virt", "uname", "yum":
		return true
	}
	return false
}
