// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
)

// counting counts how often a file is read.
type counting struct {
	host.View
	reads map[string]int
}

func (c counting) Live() bool { return true }

func (c counting) ReadFile(name string) ([]byte, error) {
	c.reads[name]++
	return c.View.ReadFile(name)
}

// A converged apply looks whether lists are fresh: that must not read dpkg's database of some megabytes for each file of sources.
func TestStaleReadsTheDatabaseOnce(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"/etc/apt/sources.list.d", "/var/lib/dpkg", "/etc/apt/preferences.d"} {
		if err := os.MkdirAll(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		put(t, fmt.Sprintf("%s/etc/apt/sources.list.d/r%d.list", dir, i), fmt.Sprintf("deb http://r%d.example/ stable main\n", i), 0o644)
	}
	put(t, dir+"/etc/apt/sources.list.d/gpuadm-driver.sources", "Types: deb\nURIs: http://x.example/\nSuites: /\n", 0o644)
	put(t, dir+dpkgStatus, strings.Repeat("Package: p\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n", 50), 0o644)
	h, err := host.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir+aptLists+"/x.example_InRelease", "", 0o644)
	c := counting{h, map[string]int{}}
	old, err := newApt().stale(c, []string{"/etc/apt/sources.list.d/gpuadm-driver.sources"})
	if err != nil || old {
		t.Fatalf("stale: %v, %v", old, err)
	}
	if n := c.reads[dpkgStatus]; n > 1 {
		t.Errorf("dpkg's database was read %d times", n)
	}
}

func BenchmarkSplit(b *testing.B) {
	s := NewSet().Of(nvidia())
	all := map[string]State{}
	for i := range 2500 {
		all[fmt.Sprintf("package-number-%d", i)] = State{Version: fmt.Sprintf("1:%d.4.7-2ubuntu1.%d", i%700, i)}
	}
	for i := range 15 {
		name := fmt.Sprintf("libnvidia-part%d-580", i)
		all[name] = State{Version: "580.95.05-0ubuntu1", Held: true}
		s.wanted[name] = State{Version: "driver=580.95.05", Held: true}
	}
	s.found = all
	for b.Loop() {
		s.split("driver")
	}
}
