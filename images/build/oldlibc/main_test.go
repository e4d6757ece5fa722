// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

func TestPrint(t *testing.T) {
	symbol := func(name, version string, kind elf.SymType, size uint64) elf.Symbol {
		return elf.Symbol{
			Name:    name,
			Version: version,
			Info:    byte(elf.STB_GLOBAL)<<4 | byte(kind),
			Size:    size,
			Section: 1,
		}
	}

	all := []elf.Symbol{
		symbol("memcpy", "GLIBC_2.2.5", elf.STT_FUNC, 9), symbol("memcpy", "GLIBC_2.14", elf.STT_FUNC, 10), symbol("stderr", "GLIBC_2.2.5", elf.STT_OBJECT, 8),
		symbol("pthread_create", "GLIBC_2.34", elf.STT_FUNC, 1), symbol("pthread_create", "GLIBC_2.2.5", elf.STT_FUNC, 1), symbol("dlopen", "GLIBC_2.34", elf.STT_FUNC, 1),
		symbol("errno", "GLIBC_PRIVATE", elf.STT_TLS, 4), symbol("arc4random", "GLIBC_2.36", elf.STT_FUNC, 1),
	}
	var text, script bytes.Buffer
	assembly(&text, newest(all, "libc"))
	versions(&script, newest(all, "libc"))
	if !strings.Contains(text.String(), "s0: .skip 10\n.symver s0, memcpy@@@GLIBC_2.14\n.bss") || strings.Contains(text.String(), "arc4random") || strings.Contains(text.String(), "errno") {
		t.Error(text.String())
	}
	if script.String() != "GLIBC_2.2.5 {};\nGLIBC_2.14 {};\n" {
		t.Error(script.String())
	}
	if got := newest(all, "libpthread"); len(got) != 1 || got[0].Version != "GLIBC_2.2.5" {
		t.Errorf("%+v", got)
	}
	if got := newest(all, "libdl"); got != nil {
		t.Errorf("%+v", got)
	}
}

//go:embed testdata/program.c.txt
var program string

// TestLink links a program with the libraries that are made from this machine's C library, and runs
// it.
func TestLink(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		must.That(t, os.Getenv("CI") != "true", "%v", err)
		t.Skip("there is no C compiler")
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	do := func(argv ...string) string {
		t.Helper()
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		must.That(t, err == nil, "%s: %v\n%s", strings.Join(argv, " "), err, out)
		return strings.TrimSpace(string(out))
	}

	libc := do(cc, "-print-file-name=libc.so.6")
	for part, number := range map[string]string{"libc": "6", "libpthread": "0", "libdl": "2"} {
		for what, suffix := range map[string]string{"assembly": ".s", "versions": ".map"} {
			var out bytes.Buffer
			must.OK(t, run([]string{what, part, libc}, &out))
			must.OK(t, os.WriteFile(file(part+suffix), out.Bytes(), 0o644))
		}

		do(cc, "-shared", "-nostdlib", "-Wl,--version-script="+file(part+".map"), "-Wl,-soname,"+part+".so."+number, "-o", file(part+".so"), file(part+".s"))
	}

	must.OK(t, os.WriteFile(file("program.c"), []byte(program), 0o644))
	do(cc, "-o", file("new"), file("program.c"), "-lpthread", "-ldl")
	link := func(name string, flags ...string) {
		do(append([]string{cc, "-L" + dir, "-o", file(name), file("program.c")}, append(flags, "-lpthread", "-ldl")...)...)
	}
	link("old", "-pie", "-fPIE", "-fstack-protector-all", "-Wl,-z,relro")
	for lacks, flags := range map[string][]string{
		"PIE":                      {"-no-pie", "-fstack-protector-all"},
		"RELRO":                    {"-pie", "-fPIE", "-fstack-protector-all", "-Wl,-z,norelro"},
		"a stack without code":     {"-pie", "-fPIE", "-fstack-protector-all", "-Wl,-z,execstack"},
		"-fstack-protector-strong": {"-pie", "-fPIE", "-fno-stack-protector"},
	} {
		link("soft", flags...)
		if err := check(file("soft")); err == nil || !strings.HasSuffix(err.Error(), "is built without "+lacks) {
			t.Errorf("without %s: %v", lacks, err)
		}
	}

	if err := check(file("old")); err != nil {
		t.Error(err)
	}
	if err := check(file("new")); err == nil || !strings.Contains(err.Error(), "pthread_create@GLIBC_2.34") {
		t.Errorf("of a program that needs a newer one: %v", err)
	}
	if said := do(file("old")); said != "starts" {
		t.Errorf("it says %q", said)
	}
}
