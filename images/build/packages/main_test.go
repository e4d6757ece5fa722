// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/blakesmith/ar"
)

// dummy answers what the packages ask gpuadm, and is otherwise bytes like any program.
const dummy = "#!/bin/sh\necho \"$*\"\n"

// epoch is the time of all files: two builds within a second would agree on the clock's time, too.
const epoch = 1750000000

// made makes packages of dummies for both architectures, in a folder of its own.
func made(t *testing.T, version string) string {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", strconv.Itoa(epoch))
	from, out := t.TempDir(), t.TempDir()
	var args []string
	for _, arch := range []string{"amd64", "arm64"} {
		name := filepath.Join(from, arch)
		if err := os.WriteFile(name, []byte(dummy), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, beside := range []string{".cdx.json", ".copyright"} {
			if err := os.WriteFile(name+beside, []byte("{}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}

		args = append(args, arch+"="+name)
	}

	o := options{
		out:     out,
		version: version,
		root:    "../../..",
		formats: "deb rpm tar.gz",
	}
	if err := run(o, args); err != nil {
		t.Fatal(err)
	}
	return out
}

// folder is what a folder holds.
func folder(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}

	return all
}

// TestReproducible: the same programs give the same bytes.
func TestReproducible(t *testing.T) {
	one, two := folder(t, made(t, "1.2.0")), folder(t, made(t, "1.2.0"))
	names := slices.Sorted(maps.Keys(one))
	want := []string{
		"SHA256SUMS", "gpuadm-1.2.0-1.aarch64.rpm", "gpuadm-1.2.0-1.x86_64.rpm", "gpuadm-1.2.0-linux-amd64.tar.gz",
		"gpuadm-1.2.0-linux-arm64.tar.gz", "gpuadm_1.2.0-1_amd64.deb", "gpuadm_1.2.0-1_arm64.deb",
	}
	if !slices.Equal(names, want) {
		t.Errorf("made %q, want %q", names, want)
	}
	for name := range one {
		if one[name] != two[name] {
			t.Errorf("%s differs when it is made twice", name)
		}
		// BUILDTIME and each file's time are such numbers in an rpm's header: rpm,
		// docs/manual/format_header.md.
		if time := binary.BigEndian.AppendUint32(nil, epoch); strings.HasSuffix(name, ".rpm") && strings.Count(one[name], string(time)) < 10 {
			t.Errorf("%s has another time than SOURCE_DATE_EPOCH", name)
		}
	}
}

// unpacked are the files of a deb's part, control.tar.gz or data.tar.gz.
func unpacked(t *testing.T, deb, part string) map[string]string {
	t.Helper()
	for r := ar.NewReader(strings.NewReader(deb)); ; {
		head, err := r.Next()
		if err != nil {
			t.Fatalf("no %s: %v", part, err)
		}
		if strings.TrimSuffix(head.Name, "/") != part {
			continue
		}
		zip, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for files := tar.NewReader(zip); ; {
			head, err := files.Next()
			if err == io.EOF {
				return all
			}
			if err != nil {
				t.Fatal(err)
			}
			if head.ModTime.Unix() != epoch {
				t.Errorf("%s is of %v, not of SOURCE_DATE_EPOCH", head.Name, head.ModTime)
			}
			if head.Typeflag == tar.TypeReg {
				data, err := io.ReadAll(files)
				if err != nil {
					t.Fatal(err)
				}
				all[path.Join("/", head.Name)] = string(data)
			}
		}
	}
}

// TestContents: a deb has the program, all units, which run the packaged program, and an example
// that changes nothing.
func TestContents(t *testing.T) {
	deb := folder(t, made(t, "v1.2.0-rc.1"))["gpuadm_1.2.0~rc.1-1_"+runtime.GOARCH+".deb"]
	data, control := unpacked(t, deb, "data.tar.gz"), unpacked(t, deb, "control.tar.gz")
	if data[programName] != dummy {
		t.Errorf("the program is %q", data[programName])
	}
	units, err := filepath.Glob("../../systemd/*gpuadm*")
	if err != nil || len(units) < 5 {
		t.Fatalf("units: %q, %v", units, err)
	}
	for _, unit := range units {
		name := strings.Replace(filepath.Base(unit), "kubelet-gpuadm.conf", "kubelet.service.d/50-gpuadm.conf", 1)
		text := data[unitDir+name]
		if text == "" || strings.Contains(text, "/usr/local") {
			t.Errorf("the unit %s is %q", name, text)
		}
	}

	for _, name := range []string{
		docDir + "copyright", docDir + "CHANGELOG.md", docDir + "changelog.Debian.gz", docDir + "doctor.md", docDir + "gpuadm.cdx.json",
		schemaDir + "node.json", "/usr/share/man/man8/gpuadm.8.gz", "/usr/share/zsh/site-functions/_gpuadm",
	} {
		if data[name] == "" {
			t.Errorf("no %s", name)
		}
	}

	if text := data[example]; text != "# help spec\n" {
		t.Errorf("the example is %q", text)
	}
	if control["/conffiles"] != example+"\n" {
		t.Errorf("conffiles are %q", control["/conffiles"])
	}
	for _, line := range []string{"Version: 1.2.0~rc.1-1\n", "Depends: libc6 (>= 2.28)\n"} {
		if !strings.Contains(control["/control"], line) {
			t.Errorf("control lacks %q:\n%s", line, control["/control"])
		}
	}

	for _, name := range []string{"/postinst", "/prerm", "/postrm"} {
		if !strings.HasPrefix(control[name], "#!/bin/sh\n") {
			t.Errorf("%s is %q", name, control[name])
		}
	}
}

// TestRefused: what cannot become packages is refused.
func TestRefused(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	for _, args := range [][]string{nil, {"amd64"}, {"s390x=a=b"}} {
		if err := run(options{out: t.TempDir(), formats: "deb"}, args); err == nil {
			t.Errorf("%q is not refused", args)
		}
	}

	t.Setenv("SOURCE_DATE_EPOCH", "")
	if err := run(options{out: t.TempDir()}, []string{"amd64=a=b"}); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("without a time: %v", err)
	}
}
