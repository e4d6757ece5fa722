// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// TestLicences: each module that is linked into gpuadm has the text of its licence, and one without
// is refused.
func TestLicences(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, form, _ := strings.Cut(string(makefile), "\nLINKED    := ")
	form, _, _ = strings.Cut(form, "\n")
	list := exec.Command("go", "list", "-deps", "-f", form, "./cmd/gpuadm")
	list.Dir = "../../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	all := foldersOf(bytes.NewReader(out))
	for path, folders := range all {
		if found, text, err := licences(known, path, folders); err != nil || len(text) < 500 {
			t.Errorf("%s: %v, %d bytes of text: %v", path, found, len(text), err)
		}
	}

	if all["std"] == nil || all["github.com/gpuadm/gpuadm"] == nil || len(all) < 20 {
		t.Errorf("go list names %d modules", len(all))
	}
	if inner := strings.Join(all["github.com/klauspost/compress"], "\n"); !strings.Contains(inner, "/xxhash") {
		t.Errorf("a package's own licence is not looked for: %s", inner)
	}
	for _, folders := range [][]string{nil, {t.TempDir()}} {
		if _, _, err := licences(known, "example.com/bare", folders); err == nil || !strings.Contains(err.Error(), "example.com/bare") {
			t.Errorf("a module without a licence: %v", err)
		}
	}
}
