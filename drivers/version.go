// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"

	version "github.com/hashicorp/go-version"
)

// Compare compares two driver versions by their numbers: below 0 if a is older. What is no version comes before what is
// one. Package versions have rules of their own, which only their packager knows.
func Compare(a, b string) int {
	va, vb := number(a), number(b)
	switch {
	case va == nil && vb == nil:
		return strings.Compare(a, b)
	case va == nil:
		return -1
	case vb == nil:
		return 1
	}
	return va.Compare(vb)
}

// number parses numbers with dots between them, and returns nil for anything else: the library would take much more.
func number(s string) *version.Version {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return nil
	}
	v, err := version.NewVersion(s)
	if err != nil {
		return nil
	}
	return v
}

// InBranch says whether a driver version belongs to a branch: 580.95.05 to 580, and to 580.95.
func InBranch(version, branch string) bool {
	return branch != "" && (version == branch || strings.HasPrefix(version, branch+"."))
}

// leadingNumbers returns the numbers with dots that a text begins with, such as a kernel's release: 6.6.15 of
// 6.6.15-x64v3; "" if there are none.
func leadingNumbers(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end >= 0 {
		s = s[:end]
	}
	return strings.TrimRight(s, ".")
}
