// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/diff"
)

// What is planted as a secret, in any shape that engines' configurations have, never shows in a diff.
func TestDiffShowsNoSecrets(t *testing.T) {
	const planted = "hunter2SECRET"
	for _, text := range []string{
		`password = "hunter2SECRET"`,
		`auth = { password = "hunter2SECRET" }`,
		`configs = { "r" = { auth = { token = "hunter2SECRET" } } }`,
		`endpoint = ["https://robot:hunter2SECRET@mirror.example"]`,
		`endpoint = ["https://hunter2SECRET@mirror.example"]`,
		`"X-Api-Key" = ["hunter2SECRET"]`,
		`Authorization = ["Basic hunter2SECRET"]`,
		"password = \"\"\"\nline\nhunter2SECRET\n\"\"\"",
		"tokens = [\n  \"hunter2SECRET\",\n]",
		"private_key = '''\n-----BEGIN KEY-----\nhunter2SECRET\n-----END KEY-----\n'''",
		"x = '''\n-----BEGIN KEY-----\nhunter2SECRET\n-----END KEY-----\n'''",
		`{"auths": {"r": {"auth": "hunter2SECRET"}}}`,
		`identitytoken: hunter2SECRET`,
		`PASSWORD="hunter2SECRET" # why`,
	} {
		before, after := []byte("a = 1\n"+text+"\nb = 2\n"), []byte("a = 2\n"+text+"\nb = 3\n")
		for _, d := range []string{diff.Texts("/etc/x", nil, after), diff.Texts("/etc/x", before, after), diff.Texts("/etc/x", before, []byte("a = 1\n"))} {
			if strings.Contains(d, planted) || d == "" {
				t.Errorf("%s\nshows\n%s", text, d)
			}
		}
	}
	if d := diff.Texts("/etc/x", []byte("a = 1\n"), []byte("a = 1\nsandbox_image = \"x\"\n")); !strings.Contains(d, "sandbox_image") {
		t.Errorf("too much is masked: %s", d)
	}
}
