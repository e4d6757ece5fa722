// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// The table is of a machine on which /etc/containerd is mounted a second time, read-only:
// mount --bind /etc/containerd /etc/containerd && mount -o remount,bind,ro /etc/containerd.
func TestReadOnlyMount(t *testing.T) {
	const table = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:1 /etc/containerd /etc/containerd ro,relatime shared:1 - ext4 /dev/sda1 rw
31 22 8:2 / /usr ro,relatime shared:2 - ext4 /dev/sda2 ro
32 22 8:3 / /srv/a\040b rw,relatime shared:3 - ext4 /dev/sda3 rw
33 22 8:4 / /mnt/my\040image ro,relatime shared:4 - ext4 /dev/sda4 ro
34 22 8:5 / /mnt/tab\011and\134 rw,relatime shared:5 - ext4 /dev/sda5 rw
35 34 8:5 / /mnt/tab\011and\134/x ro,relatime shared:5 - ext4 /dev/sda5 rw
`
	for name, want := range map[string]string{
		"/etc/containerd/config.toml": "mount -o remount,bind,rw /etc/containerd",
		"/etc/containerd":             "mount -o remount,bind,rw /etc/containerd",
		"/etc/containerd2/x":          "",
		"/usr/lib/x":                  "mount -o remount,rw /usr",
		"/srv/a b/x":                  "",
		"/mnt/my image/etc/fstab":     "mount -o remount,rw '/mnt/my image'",
		"/mnt/tab\tand\\/x/y":         "mount -o remount,bind,rw '/mnt/tab\tand\\/x'",
		"/x":                          "",
	} {
		m, ok := readOnlyMount(table, name)
		got := ""
		if ok {
			got = m.Remount()
		}
		check.Equal(t, got, want, "%s:", name)
	}

	_, ok := readOnlyMount("broken\n", "/x")
	check.That(t, !ok, "a broken table says that something is read-only")
}
