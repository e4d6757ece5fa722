// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// TestListed: names are read from the lists that came after a time, and apt is asked for compressed ones alone.
func TestListed(t *testing.T) {
	long := "Description: " + strings.Repeat("x", 3<<20) + "\n"
	n, err := simhost.New([]byte(`-- var/lib/apt/lists/a.example_ubuntu_dists_noble_main_binary-amd64_Packages --
Package: linux-image-6.8.0-88-generic
Version: 6.8.0-88.89
Depends: linux-modules-6.8.0-88-generic
Description: Package: linux-not-one

Package: linuxdoc
Version: 1

Package: linux-image-6.8.0-88-generic
Version: 6.8.0-88.90
` + long + `
Package: linux-headers-6.8.0-88-generic
-- var/lib/apt/lists/a.example_ubuntu_dists_noble_InRelease --
Package: linux-none
-- var/lib/apt/lists/partial/a_Packages --
Package: linux-partial
`))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	look := func(after time.Time, want ...string) time.Time {
		t.Helper()
		names, newest, err := Listed(ctx, n, "linux-", after)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("after %v: %q, %v; want %q", after, names, err, want)
		}
		return newest
	}
	first := look(time.Time{}, "linux-headers-6.8.0-88-generic", "linux-image-6.8.0-88-generic")
	if again := look(first); again != first {
		t.Errorf("the newest list is of %v, was of %v", again, first)
	}
	if err := n.WriteFile(aptLists+"/b_Packages", []byte("Package: linux-b\n"), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	second := look(first, "linux-b")
	if !second.After(first) {
		t.Errorf("a list of %v came after one of %v", second, first)
	}
	if err := n.Symlink(aptLists+"/d_Packages", aptLists+"/b_Packages"); err != nil {
		t.Fatal(err)
	}
	third := look(second, "linux-b") // apt's link to a list of a file: source is as young as apt's look at that
	if err := n.WriteFile(aptLists+"/c_Packages.lz4", nil, host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listed(ctx, n, "linux-", third); err == nil {
		t.Error("apt was not asked about a compressed list: there is none here to answer")
	}
	look(third.Add(time.Hour))
}
