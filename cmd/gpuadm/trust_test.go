// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// beside is what a key needs to be said with.
var beside = map[string]string{
	"driver.repo.key":  "url = \"file:///srv/mirror\"\nfingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n",
	"toolkit.repo.key": "url = \"file:///srv/mirror\"\nfingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n",
}

// TestFilesOfASpec: each file that a spec names is judged by its owner, mode and folders before a plan is made. Which keys name
// files the keys' own checks say: they refuse a relative path.
func TestFilesOfASpec(t *testing.T) {
	archive := must.Get(os.ReadFile("../../test/hosts/ubuntu24-h100.txtar"))(t)
	names := 0
	for _, k := range spec.Keys() {
		name := k.Section + "." + k.Name
		text := func(value string) []byte {
			if k.Type == spec.TypeStrings {
				value = "[" + value + "]"
			}
			return fmt.Appendf(nil, "format = 1\n[%s]\n%s = %s\n%s", k.Section, k.Name, value, beside[name])
		}
		_, err := spec.Parse(spec.File{Name: "node.toml", Data: text(`"a/b"`)})
		file := err != nil && strings.Contains(err.Error(), "is not an absolute path")
		check.That(t, file == k.File, "%s takes a path: %v, and is said to name a file: %v", name, file, k.File)
		if !k.File {
			continue
		}
		names++
		n := must.Get(simhost.New(archive))(t)
		must.OK(t, n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}))
		must.OK(t, errors.Join(n.Mkdir("/srv", host.Attr{Mode: 0o755}), n.Mkdir("/srv/ours", host.Attr{Mode: 0o755})))
		must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", text(`"/srv/ours/named"`), host.Attr{Mode: 0o644}))
		must.OK(t, n.WriteFile("/srv/ours/named", nil, host.Attr{Mode: 0o644}))
		said := func() string {
			_, err := env{}.spec(n, nil)
			return fmt.Sprint(err)
		}
		check.Equal(t, said(), "<nil>", "%s of root's:", name)
		must.OK(t, n.SetAttr("/srv/ours/named", host.Attr{Mode: 0o644, UID: 1000}))
		check.Equal(t, said(), "cannot trust /srv/ours/named: user 1000 owns it", "%s of another user's:", name)
		must.OK(t, n.Remove("/srv/ours/named"))
		must.OK(t, n.SetAttr("/srv/ours", host.Attr{Mode: 0o777}))
		check.Equal(t, said(), "cannot trust /srv/ours/named: all users can write to /srv/ours", "%s in a folder of all:", name)
	}
	check.That(t, names >= 8, "only %d keys name files", names)
}
