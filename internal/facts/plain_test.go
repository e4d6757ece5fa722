// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// FuzzPlain compares code that reads names and versions with the regular expressions that it says the same as: an expression takes
// longer to be compiled than an apply with nothing to do has for it.
func FuzzPlain(f *testing.F) {
	version := regexp.MustCompile(`^(?:\d+:)?v?(\d+(?:\.\d+)+)(?:[-~.+]?(alpha|beta|rc)[-.~]?(\d+))?`)
	key := regexp.MustCompile(`(?m) asymmetri (.*): [0-9a-f]+: X509`)
	for _, text := range []string{
		"", "7", "1:2.0.0~rc.1-1", "12:1.2", ":1.2", "1:v1.2.rc1", "v1.2..3", "1.2.", "1.2.betarc3", "1.2+alpha", "1..2", "vv1.2", "1.7.24~ds1-1+deb12u1",
		"1 asymmetri a: b: 0a: X509.rsa\n asymmetri c:0a: X509", " asymmetri a: 0a: X509: b: X509 ", " asymmetri x asymmetri : 1: X509 asymmetri y: 1: X509",
		"x/nvidia-tesla-470-open-drm.ko.xz", "nvidia-legacy-390xx.ko", "nvidia-current-modeset.ko.gz",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		hasRole(t, text)
		want := ""
		if m := version.FindStringSubmatch(text); m != nil && m[2] != "" {
			want = m[1] + "-" + m[2] + "." + m[3]
		} else if m != nil {
			want = m[1]
		}
		if is := upstream(text); is != want {
			t.Errorf("version in %q: %q, not %q", text, is, want)
		}
		var names []string
		for _, m := range key.FindAllStringSubmatch(text, -1) {
			for _, n := range []string{m[1], m[1][strings.LastIndex(m[1], ": ")+1:]} {
				if n = strings.TrimSpace(n); n != "" && !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}
		if is := keyNames(text); !slices.Equal(is, names) {
			t.Errorf("keys in %q: %q, not %q", text, is, names)
		}
	})
}

// TestRoles takes all names of modules of up to four words, and texts that are almost such names.
func TestRoles(t *testing.T) {
	words := []string{"", "-", "-current", "-tesla", "-470", "-legacy", "-390xx", "-open", "-uvm", "-fs", "-x", "fb"}
	for i := range len(words) * len(words) * len(words) * len(words) {
		name := "nvidia"
		for ; i > 0; i /= len(words) {
			name += words[i%len(words)]
		}
		for _, ending := range []string{".ko", ".ko.xz", ".ko.xz.sig", ""} {
			hasRole(t, name+ending)
		}
	}
}

var roles = regexp.MustCompile(`^nvidia(?:-current|-tesla(?:-[0-9]+)?|-legacy-[0-9a-z]+)?(?:-open)?(-uvm|-modeset|-drm|-peermem|-fs|)\.ko(?:\.xz|\.zst|\.gz)?$`)

func hasRole(t *testing.T, file string) {
	t.Helper()
	want := ""
	if m := roles.FindStringSubmatch(path.Base(file)); m != nil {
		want = "nvidia" + m[1]
	}
	check.Equal(t, role(file), want, "role of %q:", file)
}
