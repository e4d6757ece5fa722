// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestConfined(t *testing.T) {
	const all = "CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\nSeccomp:\t0\nSeccomp_filters:\t0\n"
	for _, c := range []struct{ name, status, label, mine, first, want string }{
		{"nothing known", "", "", "", "", ""},
		{"root's shell", all, "", "mnt:[1]", "mnt:[1]", ""},
		{"AppArmor, no profile", all, "unconfined\n", "mnt:[1]", "mnt:[1]", ""},
		{"SELinux, a shell", all, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\x00", "mnt:[1]", "mnt:[1]", ""},
		{"SELinux, a unit", all, "system_u:system_r:unconfined_service_t:s0\x00", "mnt:[1]", "mnt:[1]", ""},
		{
			"SELinux, a container", all, "system_u:system_r:container_t:s0:c1,c2\x00", "mnt:[1]", "mnt:[1]",
			"runs this process as \"system_u:system_r:container_t:s0:c1,c2\"",
		},
		{"a user of unconfined_u's, confined", all, "unconfined_u:unconfined_r:staff_t:s0\x00", "mnt:[1]", "mnt:[1]", "staff_t"},
		{"AppArmor, a profile", all, "docker-default (enforce)\n", "mnt:[1]", "mnt:[1]", "docker-default (enforce)"},
		{"two capabilities less", "CapEff:\t000001ffffdffffd\n", "", "", "", "lacks capabilities: capsh --decode=1ffffdffffd "},
		{"a broken mask", "CapEff:\twhat\n", "", "", "", ""},
		{"a filter", "Seccomp:\t2\n", "", "", "", "a seccomp filter"},
		{"its own mounts", all, "", "mnt:[2]", "mnt:[1]", "ReadOnlyPaths="},
		{"not allowed to read process 1", all, "", "mnt:[2]", "", ""},
	} {
		got := strings.Join(confined(c.status, c.label, "40\n", c.mine, c.first), "\n")
		check.That(t, strings.Contains(got, c.want) && (c.want == "") == (got == "") && !strings.Contains(got, "\n"), "%s: %q, want %q", c.name, got, c.want)
	}
}
