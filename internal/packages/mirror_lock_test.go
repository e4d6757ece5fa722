// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestFolderOf: apt decodes the path of a file: URL, and installs from a mirror whose path has a space.
// gpuadm has to find that mirror, too, and its digests.
func TestFolderOf(t *testing.T) {
	for url, want := range map[string]string{
		"file:///srv/mirror":              "/srv/mirror",
		"file:/srv/mirror/":               "/srv/mirror",
		"file:///srv/gpu%20mirror":        "/srv/gpu mirror",
		"file:///srv/100%25":              "/srv/100%",
		"file:///srv/50%":                 "/srv/50%", // another tool's line, which is no URL
		"https://mirror.example/srv":      "",
		"http://mirror.example/file:/srv": "",
	} {
		check.That(t, FolderOf(url) == want, "%s: %q, want %q", url, FolderOf(url), want)
	}
}
