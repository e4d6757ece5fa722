// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	shell "github.com/gpuadm/gpuadm/test/containerd/parts"
)

// parts are what packages are made of.
type parts struct {
	Recipe
	fake string // the program in place of NVIDIA's daemons
}

// makeParts builds what is not in the recipe.
func makeParts(ctx context.Context, r Recipe, dir string) (parts, error) {
	fake := filepath.Join(dir, "daemon")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", fake, "github.com/gpuadm/gpuadm/test/lab/repos/daemon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return parts{}, fmt.Errorf("cannot build the daemon of the packages: %w: %s", err, out)
	}
	return parts{r, fake}, nil
}

// program is one that says a version, and otherwise waits.
func (in parts) program(says string) File {
	return File{From: in.fake, Text: "\n" + says + "\n", Mode: 0o755}
}

// daemon is a program and its unit, of the program's name or the one given.
func (in parts) daemon(name, says string, unitName ...string) map[string]File {
	u := append(unitName, name)[0]
	return map[string]File{
		"/usr/bin/" + name:                          in.program(says),
		"/usr/lib/systemd/system/" + u + ".service": unit(u, "/usr/bin/"+name),
	}
}

// lib is a shared library of the driver, and the link that ldconfig would make of its name.
func (in parts) lib(dir, so, soname, version string) (map[string]File, error) {
	if so == "libnvidia-ml.so" && in.NVML != "" {
		return map[string]File{dir + so + "." + version: {From: in.NVML}, dir + soname: {Link: so + "." + version}}, nil
	}
	if soname == "" {
		soname = so + "." + version
	}
	text, err := library(soname)
	files := map[string]File{dir + so + "." + version: {Text: text}}
	if soname != so+"."+version {
		files[dir+soname] = File{Link: so + "." + version}
	}
	return files, err
}

// toolkit are the programs that containerd's configuration names. The runtime is runc: no container
// needs a GPU here.
func (in parts) toolkit(v string) map[string]File {
	ctk := in.program("NVIDIA Container Toolkit CLI version " + v)
	if in.CTK != "" {
		ctk = File{From: in.CTK, Mode: 0o755}
	}
	return map[string]File{
		"/usr/bin/nvidia-ctk":                         ctk,
		"/usr/bin/nvidia-container-runtime":           {Text: "#!/bin/sh\nexec /usr/bin/runc \"$@\"\n", Mode: 0o755},
		"/etc/nvidia-container-runtime/config.toml":   {Text: "disable-require = false\n"},
		"/usr/share/nvidia-container-toolkit/version": {Text: v + "\n"},
	}
}

// smi is nvidia-smi on a machine that has not loaded the module, as every host of the lab.
func smi() File {
	return File{
		Text: "#!/bin/sh\necho \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. " +
			"Make sure that the latest NVIDIA driver is installed and running.\"\nexit 9\n",
		Mode: 0o755,
	}
}

// firmware has the names of the real one.
func firmware(v string) map[string]File {
	return map[string]File{
		"/usr/lib/firmware/nvidia/" + v + "/gsp_ga10x.bin": {Text: v + "\n"},
		"/usr/lib/firmware/nvidia/" + v + "/gsp_tu10x.bin": {Text: v + "\n"},
	}
}

// command runs a program of this machine.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return shell.Run(ctx, dir, nil, name, args...)
}

// gpgKey is a key pair, in a home of gpg's own.
type gpgKey struct{ home string }

// newKey makes a key pair that has no end: repositories lie in the cache for long. gpg's agent
// listens on a socket in its home, which must have a short path: so it is in the temporary folder.
// drop ends the agent and forgets the key.
func newKey(ctx context.Context, owner string) (key gpgKey, drop func(), err error) {
	home, err := os.MkdirTemp("", "gpuadm-key-")
	if err != nil {
		return gpgKey{}, nil, fmt.Errorf("cannot make a key's folder: %w", err)
	}
	key = gpgKey{home}
	drop = func() {
		_, _ = command(context.WithoutCancel(ctx), "", "gpgconf", "--homedir", home, "--kill", "all")
		_ = os.RemoveAll(home)
	}
	if _, err := key.gpg(ctx, "--passphrase", "", "--quick-gen-key", owner+" <lab@example.invalid>", "rsa3072", "sign", "never"); err != nil {
		drop()
		return gpgKey{}, nil, err
	}
	return key, drop, nil
}

func (k gpgKey) gpg(ctx context.Context, args ...string) ([]byte, error) {
	return command(ctx, "", "gpg", append([]string{"--homedir", k.home, "--batch", "--yes", "--quiet"}, args...)...)
}

// publish writes the public key in both forms.
func (k gpgKey) publish(ctx context.Context, armored, binary string) error {
	if _, err := k.gpg(ctx, "--armor", "--output", armored, "--export"); err != nil {
		return err
	}
	_, err := k.gpg(ctx, "--output", binary, "--export")
	return err
}

//go:embed module/nvidia.c
var nvidiaC string

//go:embed module/beside.c
var besideC string

// moduleSource is what a DKMS package of one driver has in /usr/src: real C of modules that say
// what NVIDIA's say. license is the one thing that tells NVIDIA's open modules ("Dual MIT/GPL")
// from the others ("NVIDIA").
func moduleSource(version, license string) map[string]File {
	dir := "/usr/src/nvidia-" + version + "/"
	return map[string]File{
		dir + "nvidia.c":         {Text: nvidiaC},
		dir + "nvidia-uvm.c":     {Text: besideC},
		dir + "nvidia-modeset.c": {Text: besideC},
		dir + "nvidia-drm.c":     {Text: besideC},
		dir + "nvidia-peermem.c": {Text: besideC},
		dir + "lab.h":            {Text: fmt.Sprintf("#define LAB_VERSION %q\n#define LAB_LICENSE %q\n", version, license)},
		dir + "Makefile":         {Text: "obj-m := nvidia.o nvidia-uvm.o nvidia-modeset.o nvidia-drm.o nvidia-peermem.o\n"},
		dir + "dkms.conf":        {Text: dkmsConf(version)},
	}
}

// dkmsConf is as dkms(8) wants it. All modules are made in one go.
func dkmsConf(version string) string {
	text := "PACKAGE_NAME=\"nvidia\"\nPACKAGE_VERSION=\"" + version + "\"\nAUTOINSTALL=\"yes\"\n" +
		"MAKE[0]=\"make -C ${kernel_source_dir} M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build modules\"\n" +
		"CLEAN=\"true\"\n"
	for i, name := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"} {
		text += fmt.Sprintf("BUILT_MODULE_NAME[%d]=%q\nDEST_MODULE_LOCATION[%[1]d]=\"/updates/dkms\"\n", i, name)
	}
	return text
}

// library makes a shared library that has a name and nothing in it: enough for ldconfig to link to
// it. It is one segment with a dynamic section, an empty hash table and a symbol table of nothing.
// Source: System V ABI, chapter 5; ldconfig's elf/readelflib.c in glibc, which asks for PT_DYNAMIC
// and DT_SONAME.
func library(soname string) (string, error) {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	const (
		headers = 64 + 2*56 // the file's header and two of segments
		symtab  = headers
		hash    = symtab + 24
		strtab  = hash + 16
	)
	names := "\x00" + soname + "\x00"
	dynamic := (strtab + len(names) + 7) &^ 7
	entries := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_HASH), Val: hash},
		{Tag: int64(elf.DT_STRTAB), Val: strtab},
		{Tag: int64(elf.DT_SYMTAB), Val: symtab},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_SYMENT), Val: 24},
		{Tag: int64(elf.DT_NULL)},
	}
	size := uint64(dynamic + 16*len(entries))
	head := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64,
	}
	segments := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Filesz: size, Memsz: size, Align: 0x10000},
		{
			Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: uint64(dynamic), Vaddr: uint64(dynamic), Paddr: uint64(dynamic),
			Filesz: uint64(16 * len(entries)), Memsz: uint64(16 * len(entries)), Align: 8,
		},
	}
	var out bytes.Buffer
	for _, part := range []any{head, segments, elf.Sym64{}, [4]uint32{1, 1, 0, 0}, []byte(names)} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return "", fmt.Errorf("cannot make the library %s: %w", soname, err)
		}
	}
	out.Write(make([]byte, dynamic-out.Len()))
	if err := binary.Write(&out, binary.LittleEndian, entries); err != nil {
		return "", fmt.Errorf("cannot make the library %s: %w", soname, err)
	}
	return out.String(), nil
}
