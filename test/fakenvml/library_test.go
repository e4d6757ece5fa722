// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"debug/elf"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// needed are the symbols that a user of NVML like ours resolves; a missing one is a crash at its
// first call, since go-nvml binds lazily.
//
//go:embed testdata/needed.txt
var needed string

func TestSymbols(t *testing.T) {
	file, err := elf.Open(Build(t).Library)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if names, err := file.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{Soname}) {
		t.Errorf("the library calls itself %v (%v), want %s", names, err, Soname)
	}
	if libs, err := file.ImportedLibraries(); err != nil || slices.ContainsFunc(libs, func(lib string) bool {
		return !strings.HasPrefix(lib, "libc.") && !strings.HasPrefix(lib, "libpthread.") && !strings.HasPrefix(lib, "ld-")
	}) {
		t.Errorf("the library needs %v (%v), want libc alone", libs, err)
	}

	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			has = append(has, s.Name)
		}
	}

	for _, name := range strings.Fields(needed) {
		check.That(t, slices.Contains(has, name), "the library lacks %s", name)
	}
	// What it exports beyond that are older versions of the same calls; its own helpers stay
	// inside.
	calls, err := sources.ReadFile("c/calls.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range has {
		check.That(t, strings.Contains(string(calls), "X("+name+")"), "the library exports %s, which calls.h does not count", name)
	}
	listed := len(regexp.MustCompile(`X\(nvml\w+\)`).FindAll(calls, -1))
	check.That(t, listed == len(has), "calls.h counts %d calls, the library exports %d", listed, len(has))
}

// TestABI compiles our layouts against the nvml.h that go-nvml was generated from.
func TestABI(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatalf("cannot find go-nvml: %v", err)
	}
	header := filepath.Join(strings.TrimSpace(string(out)), "pkg", "nvml")
	if _, err := os.Stat(filepath.Join(header, "nvml.h")); err != nil {
		t.Fatal(err)
	}
	Build(t) // skips without a compiler
	check := func(more ...string) string {
		args := append([]string{"-std=c11", "-fsyntax-only", "-I", header, "-I", "c"}, more...)
		output, _ := exec.Command("cc", append(args, "c/abi_check.c")...).CombinedOutput()
		return string(output)
	}

	if output := check(); output != "" {
		t.Error(output)
	}
	if output := check("-Dclique=clique, more"); !strings.Contains(output, "a_fabric2 has another size") {
		t.Errorf("a field too many was not noticed: %s", output)
	}
}
