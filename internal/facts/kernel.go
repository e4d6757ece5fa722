// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strings"
)

// kernel returns the running kernel, and the installed ones newest first.
func (l *look) kernel() Kernel {
	k := Kernel{Installed: []string{}}
	if l.v.Live() {
		k.Running = l.attr("/proc/sys/kernel/osrelease")
	}
	// On merged systems both are one folder.
	dir := l.first("/lib/modules", "/usr/lib/modules")
	if dir == "" {
		return k
	}
	for _, name := range l.names(dir) {
		// A removed kernel often leaves its folder with a DKMS module in it: no modules.dep, no kernel/.
		if l.has(dir+"/"+name+"/modules.dep") || l.has(dir+"/"+name+"/kernel") {
			k.Installed = append(k.Installed, name)
		}
	}
	slices.SortFunc(k.Installed, func(a, b string) int { return newer(b, a) })
	return k
}

// newer compares two kernel releases: above 0 if a is newer. Numbers are compared as numbers, a pre-release (-rc3, ~rc3)
// comes before its release, and a number before letters means a later build: 5.14.0-503.11.1.el9 is newer than
// 5.14.0-503.el9, as rpm has it.
func newer(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = segment(a)
		y, b = segment(b)
		if x == y {
			continue
		}
		if c := rank(x) - rank(y); c != 0 {
			return c
		}
		if rank(x) == rankNumber {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := len(x) - len(y); c != 0 {
				return c
			}
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
	return 0
}

const (
	rankPre    = iota // rc3
	rankEnd           // nothing more
	rankWord          // el9
	rankNumber        // 503
)

func rank(segment string) int {
	switch {
	case segment == "":
		return rankEnd
	case segment[0] >= '0' && segment[0] <= '9':
		return rankNumber
	case segment == "rc" || segment[0] == '~':
		return rankPre
	}
	return rankWord
}

// segment cuts the next run of digits or of letters off a version; what separates them is dropped, but for ~.
func segment(s string) (seg, rest string) {
	kind := func(c byte) int {
		switch {
		case c >= '0' && c <= '9':
			return 1
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			return 2
		}
		return 0
	}
	for s != "" && kind(s[0]) == 0 {
		if s[0] == '~' {
			return "~", s[1:]
		}
		s = s[1:]
	}
	n := 0
	for n < len(s) && kind(s[n]) == kind(s[0]) {
		n++
	}
	return s[:n], s[n:]
}
