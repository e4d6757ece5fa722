// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
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

// TestMirroredCommand: the command that shows a digest works as typed.
func TestMirroredCommand(t *testing.T) {
	for dir, want := range map[string]string{
		"/srv/mirror":     "sha256sum /srv/mirror/FILE,",
		"/srv/gpu mirror": "sha256sum '/srv/gpu mirror/FILE',",
	} {
		_, err := new(Reading).Mirrored(dir, nil).To("cannot use the mirror: x differs")
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "%v", err)
		check.Has(t, strings.Join(told.Try, "\n"), want, "%s", dir)
	}
}
