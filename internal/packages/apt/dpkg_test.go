// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
)

const status = `Package: dpkg
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 1.21.22
Description: x
 Package: not-this-one

Package: libfoo
Status: hold ok installed
Architecture: i386
Installed-Size: 12
Version: 1.0-1

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 2
Conffiles:
 /etc/gone 0123

Package: never
Status: hold ok not-installed
Architecture: amd64

Package: half
Status: install reinstreq half-installed
Architecture: amd64
Version: 3
`

func TestDpkgDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir+packages.DpkgStatus, status, 0o644)
	put(t, dir+dpkgUpdates+"/0000", "Package: fresh\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 4\n", 0o644)
	put(t, dir+dpkgUpdates+"/tmp.i", "#padding\n", 0o644)
	put(t, dir+aptExtStates, "Package: libfoo\nArchitecture: i386\nAuto-Installed: 1\n\nPackage: gone\nArchitecture: amd64\nAuto-Installed: 1\n", 0o644)
	h := must.Get(host.Open(dir))(t)
	d := must.Get(readDpkg(h))(t)
	got := map[string]string{}
	for name, p := range d.packages {
		got[name] = string(p.String())
	}
	want := map[string]string{
		"dpkg": "1.21.22", "libfoo:i386": "1.0-1 held auto", "gone": "2 config-files", "never": "- held", "half": "3 half-installed", "fresh": "4 unpacked",
	}
	if !reflect.DeepEqual(got, want) || !d.interrupted || d.native != "amd64" || !d.details("dpkg").essential {
		t.Errorf("%v, %+v", got, d)
	}
}

// TestReadStates: read in pieces, the states are those of the whole file, wherever its paragraphs end; also where it is replaced
// meanwhile, where a paragraph is longer than a piece, and where no list of architectures is there.
func TestReadStates(t *testing.T) {
	t.Parallel()
	real := realDatabase(300)
	long := "Package: long\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nDescription: x\n" + strings.Repeat(" more of it\n", 4000) + "\n"
	texts := []string{real[packages.DpkgStatus], strings.TrimRight(real[packages.DpkgStatus], "\n"), real[packages.DpkgStatus] + long, long + real[packages.DpkgStatus], "", "\n\n\n", "x"}
	for shift := range 70 {
		texts = append(texts, "Package: p\nDescription: "+strings.Repeat("y", 997*shift)+"\n\n"+strings.Repeat(strings.Join(odd(), "\n\n"), 20))
	}
	for i, text := range texts {
		dir := t.TempDir()
		put(t, dir+packages.DpkgStatus, text, 0o644)
		put(t, dir+aptExtStates, real[aptExtStates], 0o644)
		if i%3 > 0 {
			put(t, dir+dpkgArch, "amd64\ni386\n", 0o644)
		}
		h := must.Get(host.Open(dir))(t)
		want := must.Get(readDpkg(h))(t)
		if got, err := readStates(host.Snapshot(h)); err != nil || !reflect.DeepEqual(got, want.packages) {
			t.Errorf("text %d: %d states, not %d (%v)", i, len(got), len(want.packages), err)
		}
		if i != 1 {
			continue
		}
		v := &replaced{View: h, then: func() { put(t, dir+packages.DpkgStatus, strings.ReplaceAll(text, "Version: 3", "Version: 4"), 0o644) }}
		got, err := readStates(v)
		for name, is := range got {
			if !strings.HasPrefix(is.Version, "4.0") {
				t.Errorf("replaced meanwhile, %s is %+v", name, is)
			}
		}
		if err != nil || len(got) != len(want.packages) {
			t.Errorf("replaced meanwhile: %d states, not %d (%v)", len(got), len(want.packages), err)
		}
	}
}

// replaced is a machine whose status file is replaced while it is read.
type replaced struct {
	host.View
	reads int
	then  func()
}

func (r *replaced) ReadAt(name string, p []byte, off int64) (int, error) {
	if r.reads++; r.reads == 2 {
		r.then()
	}
	return r.View.ReadAt(name, p, off)
}

func FuzzDpkg(f *testing.F) {
	f.Add([]byte(status))
	f.Add([]byte("Package: a\nStatus: install ok installed\n\n\n\n :\n"))
	f.Add([]byte(strings.Repeat("Package: a\nStatus: install ok installed\nVersion: 1\n\n", many)))
	f.Add([]byte(strings.Repeat("a:\n", many)))
	for _, text := range odd() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d := dpkg{packages: map[string]packages.State{}, native: "amd64"}
		alloc.Most(t, 400, len(text), func() {
			d.read = [][]byte{text}
			d.add(text)
			d.mark(text)
		})
		for name, p := range d.packages {
			if name == "" || p.Installed() && p.Version == "" {
				t.Errorf("%q: %+v", name, p)
			}
		}
		asPlain(t, d, string(text))
	})
}

func BenchmarkDatabase(b *testing.B) {
	dir := b.TempDir()
	for name, text := range realDatabase(700) {
		must.OK(b, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		must.OK(b, os.WriteFile(dir+name, []byte(text), 0o644))
	}
	h := must.Get(host.Open(dir))(b)
	b.ReportAllocs()
	for b.Loop() {
		must.Get(New().Installed(b.Context(), h))(b)
	}
}
