// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// library is the C library that gpuadm is linked with, as the builder's own apt has it for an
// architecture: signed by whom the builder trusts, with the distribution's fixes. NVML is not in
// it: the pod's process needs none, and the machine's own systemd runs gpuadm with the machine's
// libraries.
type library struct {
	arch    string
	version string
	distro  string // debian-12
	sha256  string // of the package
	files   []file
}

// loader is where programs look for the loader, and the folder of the library that has it.
type loader struct {
	link   string
	folder string
}

func loaders() map[string]loader {
	return map[string]loader{
		"amd64": {"lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/"},
		"arm64": {"lib/ld-linux-aarch64.so.1", "lib/aarch64-linux-gnu/"},
	}
}

// download gets the library's package by apt, which verifies it, and takes out of it what goes into
// the image: what gpuadm is linked with, the loader, and the licence. Lists of packages of another
// architecture lie in a folder of their own, so that the builder stays as it is.
func download(arch string) (library, error) {
	loader, known := loaders()[arch]
	if !known {
		return library{}, fmt.Errorf("cannot make an image for %s: its C library is not known", arch)
	}
	dir, err := os.MkdirTemp("", "gpuadm-image")
	if err != nil {
		return library{}, fmt.Errorf("cannot get the C library: %w", err)
	}
	defer os.RemoveAll(dir)

	deb, err := aptDownload(dir, arch)
	if err != nil {
		return library{}, fmt.Errorf("cannot get the C library of %s: %w", arch, err)
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		return library{}, fmt.Errorf("cannot get the C library of %s: %w", arch, err)
	}
	lib := library{arch: arch, sha256: fmt.Sprintf("%x", sha256.Sum256(data))}
	version, err := output(dir, "dpkg-deb", "--field", deb, "Version")
	if err == nil {
		lib.version = strings.TrimSpace(string(version))
		lib.files, err = unpack(deb, loader)
	}
	if err == nil {
		lib.distro, err = distro()
	}
	if err != nil {
		return library{}, fmt.Errorf("cannot use %s: %w", filepath.Base(deb), err)
	}

	return lib, nil
}

// aptDownload returns the package's file. Sources: apt.conf(5); apt-get(8), "download".
func aptDownload(dir, arch string) (string, error) {
	const format = `Dir::State::Lists "%s/lists";
Dir::Cache "%[1]s/cache";
APT::Architecture "%s";
APT::Architectures { "%[2]s"; };
Acquire::Languages "none";
APT::Sandbox::User "";
`
	settings := fmt.Sprintf(format, dir, arch)
	err := os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(settings), 0o644)
	for _, folder := range []string{"lists/partial", "cache/archives/partial"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}

	for _, verb := range [][]string{{"update"}, {"download", "libc6"}} {
		if err == nil {
			_, err = output(dir, "apt-get", append([]string{"--quiet=2"}, verb...)...)
		}
	}

	if err != nil {
		return "", err
	}

	found, err := filepath.Glob(filepath.Join(dir, "libc6_*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("apt left %q: %w", found, errors.Join(err, os.ErrNotExist))
	}

	return found[0], nil
}

// output runs a program in the folder with apt's settings.
func output(dir, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "APT_CONFIG="+filepath.Join(dir, "apt.conf"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}

	return out, nil
}

// distro is the builder's, as package URLs write it: debian-12.
func distro() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = strings.Trim(value, `"`)
	}

	return values["ID"] + "-" + values["VERSION_ID"], err
}

// unpack takes files out of a package, which has them below / or, since Debian 13, below /usr.
func unpack(deb string, loader loader) ([]file, error) {
	dir := deb + ".files"
	if _, err := output(filepath.Dir(deb), "dpkg-deb", "--extract", deb, dir); err != nil {
		return nil, err
	}

	program := filepath.Base(loader.link)
	names := []string{"usr/share/doc/libc6/copyright"}
	for _, name := range []string{program, "libc.so.6", "libdl.so.2", "libpthread.so.0"} {
		names = append(names, loader.folder+name)
	}

	var files []file
	for _, name := range names {
		at := filepath.Join(dir, name)
		if _, err := os.Stat(at); err != nil {
			at = filepath.Join(dir, "usr", name)
		}
		data, err := os.ReadFile(at)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(at)
		if err != nil {
			return nil, err
		}
		files = append(files, file{
			name: name,
			mode: int64(info.Mode().Perm()),
			data: data,
		})
	}

	link := file{name: loader.link, link: "/" + loader.folder + program}

	return append(files, link), nil
}

// bills is gpuadm's bill of materials with the C library in it.
func bills(name string, l library) ([]byte, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the bill of materials: %w", err)
	}
	defer in.Close()

	bom := new(cdx.BOM)
	if err := cdx.NewBOMDecoder(in, cdx.BOMFileFormatJSON).Decode(bom); err != nil {
		return nil, fmt.Errorf("cannot read the bill of materials %s: %w", name, err)
	}
	if bom.Components == nil || len(*bom.Components) == 0 {
		return nil, fmt.Errorf("cannot use the bill of materials %s: it is empty", name)
	}

	vendor, _, _ := strings.Cut(l.distro, "-")
	version := url.QueryEscape(l.version)
	purl := fmt.Sprintf("pkg:deb/%s/libc6@%s?arch=%s&distro=%s", vendor, version, l.arch, l.distro)
	*bom.Components = append(*bom.Components, cdx.Component{
		BOMRef:     purl,
		Type:       cdx.ComponentTypeLibrary,
		Name:       "libc6",
		Version:    l.version,
		PackageURL: purl,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: l.sha256}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "LGPL-2.1-or-later"}}},
	})
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("cannot write the bill of materials: %w", err)
	}

	return out.Bytes(), nil
}
