// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import "strings"

// Own returns a package's own version: that of the driver or toolkit in it, without the packager's epoch and revision.
// 3:580.95.05-1.el9 and 580.95.05-0ubuntu1 are both 580.95.05.
func Own(version string) string {
	if _, after, ok := strings.Cut(version, ":"); ok {
		version = after
	}
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	return version
}

// Matches says whether a package's version has the own version that a pattern asks for.
func Matches(pattern, version string) bool {
	own := Own(version)
	if pattern == "*" {
		return true
	}
	if start, ok := strings.CutSuffix(pattern, ".*"); ok {
		return own == start || strings.HasPrefix(own, start+".")
	}
	return own == pattern
}
