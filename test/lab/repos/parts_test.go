// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"debug/elf"
	"slices"
	"strings"
	"testing"
)

// TestLibrary: the library can be read, and says its name.
func TestLibrary(t *testing.T) {
	text, err := library("libx.so.1")
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if file.Type != elf.ET_DYN || len(file.Progs) != 2 || file.Progs[1].Type != elf.PT_DYNAMIC {
		t.Errorf("no library: %+v", file)
	}
	dynamic := file.Progs[1]
	if !strings.Contains(text[:dynamic.Off], "\x00libx.so.1\x00") || dynamic.Filesz%16 != 0 || dynamic.Off%8 != 0 {
		t.Errorf("dynamic section at %d, %d bytes", dynamic.Off, dynamic.Filesz)
	}
}

// TestChosen: variants lack what they shall lack, and nothing else.
func TestChosen(t *testing.T) {
	stanza := func(name, version string) string { return "Package: " + name + "\nVersion: " + version + "-1" }
	all := []string{
		stanza("libcuda1", "580.65.06"), stanza("libcuda1", Gone), stanza("libcuda1", "590.48.01"),
		stanza("nvidia-fabricmanager", "580.65.06"), stanza("nvidia-fabricmanager", "590.48.01"),
	}
	for variant, lost := range map[Variant][]int{Good: nil, Vanished: {1}, Lagging: {4}, Tampered: nil} {
		var want []string
		for i, s := range all {
			if !slices.Contains(lost, i) {
				want = append(want, s)
			}
		}
		if got := chosen(strings.Join(all, "\n\n")+"\n", variant); got != strings.Join(want, "\n\n")+"\n" {
			t.Errorf("%s:\n%s", variant, got)
		}
	}
}

// TestModular: what is in a module stream, by its file's name.
func TestModular(t *testing.T) {
	for file, want := range map[string]string{
		"/rpms/kmod-nvidia-open-dkms-580.65.06-1.el9.x86_64.rpm": "kmod-nvidia-open-dkms 580.65.06",
		"/rpms/nvidia-imex-580.65.06-1.x86_64.rpm":               "",
	} {
		name, version, _ := modular(file)
		if got := strings.TrimSpace(name + " " + version); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	text := modules([]string{"kmod-nvidia-open-dkms-580.65.06-1.el9.x86_64.rpm", "kmod-nvidia-latest-dkms-580.65.06-1.el9.x86_64.rpm"})
	if strings.Count(text, "- kmod-nvidia-open-dkms-3:580.65.06-1.el9.x86_64\n") != 2 || strings.Count(text, "document: modulemd") != len(streams()) {
		t.Errorf("streams:\n%s", text)
	}
}
