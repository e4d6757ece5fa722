// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Entry is all that is known of a code without a machine: docs/doctor.md has the entries of all
// codes, and doctor CODE prints one.
type Entry struct {
	Check
	By   []string     // codes of faults that bring it along
	Xids []faults.Xid // that it is about; of one code only
}

// Entries are those of all checks, by code.
func Entries() (all []Entry) {
	for _, check := range Checks() {
		entry := Entry{Check: check, By: bringing(check.Code)}
		if check.Code == xidCode {
			entry.Xids = faults.Xids()
		}
		all = append(all, entry)
	}

	sorting.By(all, func(a, b Entry) int { return strings.Compare(a.Code, b.Code) })
	return all
}

// bringing are the codes of the faults that bring one along, sorted.
func bringing(code string) (by []string) {
	for _, e := range Edges() {
		explained, _, _ := strings.Cut(e.Explains, "/")
		from, _, _ := strings.Cut(e.By, "/")
		if explained == code && from != code && !slices.Contains(by, from) {
			by = append(by, from)
		}
	}

	slices.Sort(by)
	return by
}
