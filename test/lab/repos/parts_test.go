// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"debug/elf"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestLibrary: the library can be read, and says its name.
func TestLibrary(t *testing.T) {
	text := must.Get(library("libx.so.1"))(t)
	file := must.Get(elf.NewFile(strings.NewReader(text)))(t)
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

// TestModular: what is in a module stream.
func TestModular(t *testing.T) {
	list := []Package{
		{Name: "kmod-nvidia-open-dkms", Version: "3:580.65.06-1.el9", Arch: "noarch"},
		{Name: "kmod-nvidia-latest-dkms", Version: "3:580.65.06-1.el9", Arch: "noarch"},
		{Name: "libnvidia-ml", Version: "3:580.65.06-1.el9"},
		{Name: "nvidia-imex", Version: "580.65.06-1"},
		{Name: "kmod-nvidia-580.65.06-5.14.0-1", Version: "580.65.06-3.el9_8", Stream: "580"},
	}
	text := modules(list)
	for line, count := range map[string]int{
		"- kmod-nvidia-open-dkms-3:580.65.06-1.el9.noarch\n":   2,
		"- kmod-nvidia-latest-dkms-3:580.65.06-1.el9.noarch\n": 2,
		"- libnvidia-ml-3:580.65.06-1.el9.x86_64\n":            5,
		"- kmod-nvidia-580.65.06-5.14.0-1-580.65.06-3.el9_8":   1,
		"nvidia-imex":          0,
		"document: modulemd\n": 5,
	} {
		if n := strings.Count(text, line); n != count {
			t.Errorf("%q is there %d times, want %d:\n%s", line, n, count, text)
		}
	}
}
