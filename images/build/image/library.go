// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/blakesmith/ar"
	"github.com/ulikunitz/xz"
)

// library is the C library that gpuadm is linked with, of Debian 12: pinned, so that no machine's own gets into the image. NVML is
// not in it: the pod's process needs none, and the machine's own systemd runs gpuadm with the machine's libraries.
type library struct {
	arch, sha256 string
	folder       string // of its files
	loader       string // that programs name, and what it links to
}

// version is that of the package libc6. A newer one, and its sums: apt-cache show libc6, and the same of arm64.
const version = "2.36-9+deb12u14"

func libraries() map[string]library {
	return map[string]library{
		"amd64": {
			"amd64", "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf",
			"lib/x86_64-linux-gnu/", "lib64/ld-linux-x86-64.so.2",
		},
		"arm64": {
			"arm64", "01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4",
			"lib/aarch64-linux-gnu/", "lib/ld-linux-aarch64.so.1",
		},
	}
}

// wanted are the package's files that go into the image: what gpuadm is linked with, the loader, and the licence.
func (l library) wanted() []string {
	return []string{
		l.folder + filepath.Base(l.loader), l.folder + "libc.so.6", l.folder + "libdl.so.2", l.folder + "libpthread.so.0",
		"usr/share/doc/libc6/copyright",
	}
}

// files are the library's, of a package that is the pinned one.
func (l library) files(cache string, archives []string) (files []file, err error) {
	name := fmt.Sprintf("libc6_%s_%s.deb", version, l.arch)
	kept := filepath.Join(cache, name)
	data, err := os.ReadFile(kept)
	if err != nil || l.check(data) != nil {
		if data, err = l.fetch(name, archives); err != nil {
			return nil, err
		}
		if err := os.WriteFile(kept, data, 0o644); err != nil {
			return nil, fmt.Errorf("cannot keep a package: %w", err)
		}
	}
	found, err := unpack(data, l.wanted())
	if err != nil {
		return nil, fmt.Errorf("cannot unpack %s: %w", name, err)
	}
	return append(found, file{name: l.loader, link: "/" + l.folder + filepath.Base(l.loader)}), nil
}

func (l library) check(data []byte) error {
	if is := fmt.Sprintf("%x", sha256.Sum256(data)); is != l.sha256 {
		return fmt.Errorf("its sha256 is %s, not %s", is, l.sha256)
	}
	return nil
}

func (l library) fetch(name string, archives []string) (data []byte, err error) {
	failed := []error{fmt.Errorf("cannot get %s", name)}
	for _, archive := range archives {
		address := archive + "/pool/main/g/glibc/" + url.PathEscape(name)
		if data, err = get(address); err == nil {
			if err = l.check(data); err == nil {
				return data, nil
			}
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, errors.Join(failed...)
}

func get(address string) ([]byte, error) {
	response, err := http.Get(address)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return io.ReadAll(response.Body)
}

// unpack takes files out of a Debian package: an ar archive with a tar archive in it. Source: deb(5).
func unpack(deb []byte, wanted []string) (files []file, err error) {
	r := ar.NewReader(bytes.NewReader(deb))
	for {
		head, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("no data.tar.xz: %w", err)
		}
		if strings.TrimSuffix(head.Name, "/") == "data.tar.xz" {
			break
		}
	}
	plain, err := xz.NewReader(r)
	if err != nil {
		return nil, err
	}
	left := map[string]bool{}
	for _, name := range wanted {
		left[name] = true
	}
	for t := tar.NewReader(plain); len(left) > 0; {
		head, err := t.Next()
		if err != nil {
			return nil, fmt.Errorf("%v: %w", left, err)
		}
		name := strings.TrimPrefix(head.Name, "./")
		if !left[name] || head.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: name, mode: head.Mode, data: data})
		delete(left, name)
	}
	return files, nil
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
	at := fmt.Sprintf("pkg:deb/debian/libc6@%s?arch=%s&distro=debian-12", url.QueryEscape(version), l.arch)
	*bom.Components = append(*bom.Components, cdx.Component{
		BOMRef: at, Type: cdx.ComponentTypeLibrary, Name: "libc6", Version: version, PackageURL: at,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: l.sha256}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "LGPL-2.1-or-later"}}},
	})
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("cannot write the bill of materials: %w", err)
	}
	return out.Bytes(), nil
}
