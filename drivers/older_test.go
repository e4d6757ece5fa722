// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/listings"
	"github.com/gpuadm/gpuadm/test/must"
)

var exactVersion = regexp.MustCompile(`^\d{3}\.\d+(\.\d+)?$`)

// TestOlderTables says which rows of the generated tables are older than a release that the listings
// know. A new listing makes it fail: then make facts with newer records is due, and what they do not
// have yet is taken over by -update.
func TestOlderTables(t *testing.T) {
	newest := map[string]string{} // by branch, in a repository
	for _, l := range listings.All() {
		branch, _, _ := strings.Cut(l.Version, ".")
		if exactVersion.MatchString(l.Version) && hardware.Compare(l.Version, newest[branch]) > 0 {
			newest[branch] = l.Version
		}
	}

	known := map[string]string{} // by branch: the newest driver that kernels.tsv says something of
	for _, r := range kernelRows() {
		if hardware.Compare(r.through, known[r.branch]) > 0 {
			known[r.branch] = r.through
		}
	}

	var text strings.Builder
	for _, branch := range slices.Sorted(maps.Keys(newest)) {
		switch to := known[branch]; {
		case to == "":
			fmt.Fprintf(&text, "kernels.tsv: nothing of branch %s, of which %s is out\n", branch, newest[branch])
		case hardware.Compare(newest[branch], to) > 0:
			fmt.Fprintf(&text, "kernels.tsv: branch %s to %s, and %s is out\n", branch, to, newest[branch])
		}
	}

	for _, l := range recordsOfGPUs(t) {
		branch, _, _ := strings.Cut(l, ".")
		if hardware.Compare(newest[branch], l) > 0 {
			fmt.Fprintf(&text, "drivers.tsv: a record ends at %s, and %s is out\n", l, newest[branch])
		}
	}

	golden(t, "older.txt", text.String())
}

// recordsOfGPUs are the newest drivers of the records that the head of drivers.tsv names.
func recordsOfGPUs(t *testing.T) (all []string) {
	text := string(must.Get(os.ReadFile("../internal/gputable/drivers.tsv"))(t))
	for _, m := range regexp.MustCompile(`(?m)^#   \S+: \S+, to ([0-9.]+) \(`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	check.That(t, len(all) >= 3, "the head of drivers.tsv names no records: %q", all)
	return all
}
