// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import "testing"

// A proxy that does not answer is told from a repository that does not.
func TestDeadProxy(t *testing.T) {
	for said, want := range map[string]string{
		"E: Failed to fetch http://vendor.invalid/x/InRelease  Could not connect to 127.0.0.1:1 (127.0.0.1). - connect (111: Connection refused)":                       "127.0.0.1:1",
		"E: Failed to fetch http://vendor.invalid/x/InRelease  Could not resolve 'proxy.example'":                                                                       "proxy.example",
		"E: Failed to fetch http://vendor.invalid/x/InRelease  Could not connect to vendor.invalid:80 (10.0.0.1), connection timed out":                                 "",
		"E: Failed to fetch http://vendor.invalid/x/InRelease  Could not resolve 'vendor.invalid'":                                                                      "",
		"- Curl error (7): Could not connect to server for http://vendor.invalid/x [Failed to connect to 127.0.0.1 port 1 after 0 ms: Could not connect to server]":     "127.0.0.1:1",
		"- Curl error (7): Couldn't connect to server for http://vendor.invalid/x [Failed to connect to vendor.invalid port 80 after 0 ms: Couldn't connect to server]": "",
		"- Curl error (5): Could not resolve proxy name for http://vendor.invalid/x [Could not resolve proxy: proxy.example]":                                           "proxy.example",
		"- Curl error (6): Could not resolve hostname for http://vendor.invalid/x [Could not resolve host: vendor.invalid]":                                             "",
		"Could not connect to 10.0.0.1:80": "",
		"E: Failed to fetch http://packages.example.com/debian/dists/bookworm/InRelease  Could not connect to cdn.example.net:80 (192.0.2.132), connection timed out":         "", // by its SRV record
		"- Curl error (7): Couldn't connect to server for https://vendor.invalid/x [Failed to connect to cdn.vendor.invalid port 443 after 0 ms: Couldn't connect to server]": "", // where it was sent on to
		"E: Failed to fetch file:/srv/nvidia/InRelease  File not found - /srv/nvidia/InRelease (2: No such file or directory)":                                                "",
	} {
		if got := deadProxy(said); got != want {
			t.Errorf("%s: %q, want %q", said, got, want)
		}
	}
}
