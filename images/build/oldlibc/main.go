// SPDX-License-Identifier: Apache-2.0

// Command oldlibc makes gpuadm start on machines whose C library is older than that of the machine
// it is built on.
//
// A program asks at its start for the version of each C function that it was linked with. oldlibc
// prints the assembly of a library to link with instead of the C library: it has all of its names
// and no code, each in the newest version that the oldest supported C library has.
//
//	oldlibc assembly libc|libpthread|libdl LIBC   the library's assembly
//	oldlibc versions libc|libpthread|libdl LIBC   its version script
//	oldlibc check PROGRAM                         whether a program starts there, and is hardened
package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// floor is the oldest C library gpuadm starts on: that of RHEL 8.
const floor = "GLIBC_2.28"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oldlibc:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "check":
		return check(args[1])
	case len(args) == 3 && args[0] == "assembly":
		return write(out, args[1], args[2], assembly)
	case len(args) == 3 && args[0] == "versions":
		return write(out, args[1], args[2], versions)
	}
	return errors.New("usage: oldlibc assembly|versions libc|libpthread|libdl LIBC, or oldlibc check PROGRAM")
}

// write has one of the two writers write the names of a part of a library.
func write(out io.Writer, part, library string, writer func(io.Writer, []elf.Symbol)) error {
	all, err := exported(library)
	if err != nil {
		return err
	}
	symbols := newest(all, part)
	if len(symbols) == 0 {
		return fmt.Errorf("%s has nothing of %s: it is older than glibc 2.34; link with it directly", library, part)
	}

	buffered := bufio.NewWriter(out)
	writer(buffered, symbols)
	return buffered.Flush()
}

// exported reads the names that a library exports.
func exported(library string) ([]elf.Symbol, error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", library, err)
	}
	defer f.Close()

	all, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("cannot read the symbols of %s: %w", library, err)
	}
	isImported := func(s elf.Symbol) bool {
		return s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS
	}

	return slices.DeleteFunc(all, isImported), nil
}

// newest takes for each name of a part the newest version that is not above the floor.
func newest(all []elf.Symbol, part string) []elf.Symbol {
	best := map[string]elf.Symbol{}
	for _, s := range all {
		isThreadLocal := elf.ST_TYPE(s.Info) == elf.STT_TLS
		if partOf(s.Name) != part || isThreadLocal || !runsOnFloor(s.Version) {
			continue
		}
		old, ok := best[s.Name]
		if !ok || compare(s.Version, old.Version) > 0 {
			best[s.Name] = s
		}
	}

	byName := func(a, b elf.Symbol) int { return strings.Compare(a.Name, b.Name) }

	return slices.SortedFunc(maps.Values(best), byName)
}

// partOf is the library that had a name until glibc 2.34 put all into libc: its NEWS.
func partOf(name string) string {
	dl := []string{
		"dladdr", "dladdr1", "dlinfo",
		"dlopen", "dlmopen", "dlclose", "dlerror",
		"dlsym", "dlvsym",
	}
	isThread := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.ContainsFunc([]string{"pthread_", "__pthread_", "sem_"}, isThread):
		return "libpthread"
	case slices.Contains(dl, name):
		return "libdl"
	}

	return "libc"
}

// assembly writes the names: functions without code, and room for data, which a program may have to
// copy.
func assembly(w io.Writer, symbols []elf.Symbol) {
	for i, s := range symbols {
		section := ".text"
		kind := "function"
		if elf.ST_TYPE(s.Info) == elf.STT_OBJECT {
			section = ".bss"
			kind = "object"
		}
		size := max(s.Size, 1)
		fmt.Fprintf(w, "%s\n.balign 32\n.globl s%d\n", section, i)
		fmt.Fprintf(w, ".type s%d, %%%s\n.size s%d, %d\n", i, kind, i, size)
		fmt.Fprintf(w, "s%d: .skip %d\n.symver s%d, %s@@@%s\n", i, size, i, s.Name, s.Version)
	}

	fmt.Fprintf(w, ".section .note.GNU-stack,\"\",%%progbits\n")
}

// versions writes the version script: all versions. The assembly says which name has which.
func versions(w io.Writer, symbols []elf.Symbol) {
	var names []string
	for _, s := range symbols {
		names = append(names, s.Version)
	}

	slices.SortFunc(names, compare)
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(w, "%s {};\n", name)
	}
}

// check finds what a program needs that the floor does not have. Names of NVML are found when its
// library is loaded.
func check(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", program, err)
	}
	defer f.Close()

	imported, err := f.ImportedSymbols()
	if err != nil {
		return fmt.Errorf("cannot read what %s imports: %w", program, err)
	}

	// gcc's own start files use these if they exist.
	optional := []string{"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
	var missing []string
	for _, s := range imported {
		switch {
		case s.Version == "" && strings.HasPrefix(s.Name, "nvml"):
		case s.Version == "" && slices.Contains(optional, s.Name):
		// On arm64 the loader has it, in GLIBC_2.17, and libc has not: readelf --dyn-syms of
		// ld-linux-aarch64.so.1 in Debian's libc6-arm64-cross;
		// https://github.com/hew-lang/hew/pull/366.
		case s.Version == "" && s.Name == "__stack_chk_guard":
		case !runsOnFloor(s.Version):
			missing = append(missing, strings.TrimSuffix(s.Name+"@"+s.Version, "@"))
		}
	}

	if len(missing) > 0 {
		return fmt.Errorf("%s does not start with %s: %s", program, floor, strings.Join(missing, " "))
	}
	return hardened(program, f, imported)
}

// hardened says what a program lacks that scanners of binaries ask for: a place that is random
// (PIE), what the loader has relocated read-only (RELRO, partial: NVML's names are bound late), a
// stack that is not executable, and C code that guards its stack.
func hardened(program string, f *elf.File, imported []elf.ImportedSymbol) error {
	relro := false
	stack := false
	for _, p := range f.Progs {
		relro = relro || p.Type == elf.PT_GNU_RELRO
		stack = stack || p.Type == elf.PT_GNU_STACK && p.Flags&elf.PF_X == 0
	}

	isGuard := func(s elf.ImportedSymbol) bool { return s.Name == "__stack_chk_fail" }

	for _, p := range []struct {
		what string
		has  bool
	}{
		{"PIE", f.Type == elf.ET_DYN},
		{"RELRO", relro},
		{"a stack without code", stack},
		{"-fstack-protector-strong", slices.ContainsFunc(imported, isGuard)},
	} {
		if !p.has {
			return fmt.Errorf("%s is built without %s", program, p.what)
		}
	}

	return nil
}

// runsOnFloor reports whether a version is one of glibc's public ones, and not above the floor.
func runsOnFloor(version string) bool {
	return strings.HasPrefix(version, "GLIBC_2.") && compare(version, floor) <= 0
}

// compare orders GLIBC_2.3.4 before GLIBC_2.28.
func compare(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(version string) []int {
	var all []int
	for _, part := range strings.Split(strings.TrimPrefix(version, "GLIBC_"), ".") {
		n, _ := strconv.Atoi(part)
		all = append(all, n)
	}

	return all
}
