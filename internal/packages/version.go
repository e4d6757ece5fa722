// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"strings"
)

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

// CompareDebian orders versions as dpkg does: deb-version(7).
func CompareDebian(a, b string) int {
	ea, ua, ra := splitDebian(a)
	eb, ub, rb := splitDebian(b)
	return cmp.Or(compareNumbers(ea, eb), comparePart(ua, ub), comparePart(ra, rb))
}

func splitDebian(v string) (epoch, upstream, revision string) {
	if e, rest, ok := strings.Cut(v, ":"); ok {
		epoch, v = e, rest
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		v, revision = v[:i], v[i+1:]
	}
	return epoch, v, revision
}

// comparePart compares stretches of non-digits and of digits in turn.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		for i := 0; ; i++ {
			x, y := at(a, i), at(b, i)
			if digit(x) && digit(y) || digit(x) && y == 0 || x == 0 && digit(y) || x == 0 && y == 0 {
				a, b = a[min(i, len(a)):], b[min(i, len(b)):]
				break
			}
			if o := weight(x) - weight(y); o != 0 {
				return o
			}
		}
		x, y := digits(a), digits(b)
		if c := compareNumbers(x, y); c != 0 {
			return c
		}
		a, b = a[len(x):], b[len(y):]
	}
	return 0
}

// at returns 0 behind the end, and only there.
func at(s string, i int) byte {
	if i < len(s) {
		return max(s[i], 1)
	}
	return 0
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// weight: a tilde comes before the end, letters before all else.
func weight(c byte) int {
	switch {
	case c == 0 || digit(c):
		return 0
	case c == '~':
		return -1
	case 'a' <= c|0x20 && c|0x20 <= 'z':
		return int(c)
	}
	return int(c) + 256
}

func digits(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}

// compareNumbers compares numbers of any length; "" is 0.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
