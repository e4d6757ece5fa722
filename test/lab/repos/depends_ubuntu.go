// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"slices"
	"strings"
)

// ubuntuDepends says what a package of Ubuntu's names needs where no listing does. Sources: the
// pages of nvidia-headless-no-dkms-550, nvidia-headless-550, nvidia-dkms-550-server,
// nvidia-compute-utils-595 and libnvidia-compute-580-server at packages.ubuntu.com: NVIDIA's
// packages follow those; that nvidia-headless-580 draws in the decoder, and nvidia-driver-580
// nvidia-persistenced and nvidia-modprobe, is in the listings of 580.159.03 and 580.65.06. What is
// not in the edition is not needed.
func ubuntuDepends(e edition, name string, has func(string) bool) []string {
	of := decoration(name)
	open := ""
	if isOpen(name) {
		open = "-open"
	}

	var list []string
	same := func(names ...string) {
		for _, n := range names {
			if has(n) {
				list = append(list, n+" (= "+e.whole(n)+")")
			}
		}
	}

	about := func(names ...string) { // any revision of the version that begins with 0
		for _, n := range names {
			if has(n) && strings.HasPrefix(e.revision, "-0") {
				list = append(list, n+" (<= "+e.version+"-1)", n+" (>= "+e.version+")")
			} else {
				same(n)
			}
		}
	}

	some := func(names ...string) {
		for _, n := range names {
			if has(n) {
				list = append(list, n)
			}
		}
	}

	firmware := []string{"nvidia-firmware" + of + "-" + e.version, "nvidia-firmware" + of}
	switch base(name) {
	case "nvidia-headless-no-dkms":
		same("libnvidia-cfg1"+of, "libnvidia-compute"+of, "nvidia-compute-utils"+of, "nvidia-kernel-source"+of+open)
		about("nvidia-kernel-common" + of)
		if !strings.Contains(of, "server") {
			same("libnvidia-decode" + of)
		}
	case "nvidia-headless":
		same("nvidia-headless-no-dkms" + of + open)
		about("nvidia-dkms" + of + open)
	case "nvidia-dkms":
		list = append(list, "dkms")
		about("nvidia-kernel-common"+of, "nvidia-kernel-source"+of+open)
		if open == "" {
			some(firmware...)
		}
	case "nvidia-kernel-common":
		some(firmware...)
		some("nvidia-modprobe")
	case "libnvidia-compute":
		same("libnvidia-cfg1"+of, "libnvidia-gpucomp"+of)
	case "nvidia-compute-utils":
		some("libnvidia-compute" + of)
		if e.branch() == "570" { // in whatever version: the listing of 570.148.08
			some("nvidia-persistenced")
		} else {
			same("nvidia-persistenced")
		}
	case "nvidia-utils", "libnvidia-decode":
		some("libnvidia-compute" + of)
	case "libnvidia-encode":
		same("libnvidia-decode" + of)
	case "libnvidia-gl":
		same("libnvidia-gpucomp" + of)
		some("libnvidia-common" + of)
	case "nvidia-driver":
		same(
			"libnvidia-gl"+of, "nvidia-kernel-source"+of+open, "libnvidia-compute"+of, "libnvidia-extra"+of,
			"nvidia-compute-utils"+of, "libnvidia-decode"+of, "libnvidia-encode"+of, "nvidia-utils"+of,
			"xserver-xorg-video-nvidia"+of, "libnvidia-cfg1"+of, "libnvidia-fbc1"+of,
		)
		about("nvidia-dkms"+of+open, "nvidia-kernel-common"+of)
	}

	switch {
	case strings.HasPrefix(name, "nvidia-open"):
		same("nvidia-driver"+branchOf(e)+"-open", "nvidia-driver-open")
	case strings.HasPrefix(name, "cuda-drivers-fabric"):
		some("cuda-drivers"+branchOf(e), "nvidia-fabricmanager"+branchOf(e), "nvidia-fabricmanager")
	case strings.HasPrefix(name, "cuda-drivers"):
		same("nvidia-driver"+branchOf(e), "nvidia-driver")
	}

	return list
}

func branchOf(e edition) string { return "-" + e.branch() }

// instead are the names that keep a package's twins of other branches and flavours away. In
// NVIDIA's repository they end in -any (debtree of nvidia-open-570, in the listing of 570.148.08).
// How Ubuntu's twins keep each other away is not listed; that they do not keep NVIDIA's away is:
// the files of firmware, libnvidia-cfg1 and others collide without a Conflicts. What took over a
// file from another package keeps that away too, or no upgrade could be.
func instead(source, name string, has func(string) bool) []string {
	word := base(name)
	switch {
	case strings.HasPrefix(word, "nvidia-firmware"),
		strings.HasPrefix(word, "nvidia-driver-pinning"),
		strings.HasPrefix(name, "linux-modules"):
		return nil
	case word == "nvidia-persistenced":
		return []string{"nvidia-persistenced-any"}
	case strings.HasPrefix(name, "nvidia-open"),
		strings.HasPrefix(name, "cuda-drivers"),
		word == name && !slices.Contains(unbranched(), word):
		return nil
	case source == "ubuntu":
		return []string{word + "-of-ubuntu"}
	case word == "nvidia-compute-utils" && !has("nvidia-persistenced"):
		return []string{"nvidia-compute-utils-any", "nvidia-persistenced-any"}
	case name == "libnvidia-compute":
		return []string{"libnvidia-compute-any", "nvidia-utils-any", "nvidia-compute-utils-any"}
	}

	return []string{word + "-any"}
}

// unbranched are the names that have no branch from 590 on, or from 580 on for what is built
// elsewhere.
func unbranched() []string {
	return []string{
		"libnvidia-compute", "libnvidia-gpucomp", "libnvidia-decode", "libnvidia-encode",
		"libnvidia-fbc1", "libnvidia-gl", "libnvidia-cfg1", "libnvidia-common", "libnvidia-extra",
		"nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "xserver-xorg-video-nvidia",
		"nvidia-dkms", "nvidia-kernel-common", "nvidia-kernel-source",
		"nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm",
	}
}
