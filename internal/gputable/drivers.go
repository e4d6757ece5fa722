// SPDX-License-Identifier: Apache-2.0

package gputable

import (
	_ "embed"
	"strings"
	"sync"
)

// Served is what published lists of NVIDIA's drivers say of a GPU: a row of drivers.tsv, which
// make facts writes.
type Served struct {
	Name    string   // NVIDIA's: NVIDIA H200 NVL
	Modules string   // open, both, closed; "" if no list says it
	First   []string // the first driver of each branch: 570.169, 575.64, and 580+ for all from there on
	Sources []string // readme, ami, suse, debian, exceptions
	Month   string   // of the newest list that has the GPU
}

//go:embed drivers.tsv
var servedText string

// servedColumns is how many columns a row of drivers.tsv has.
const servedColumns = 6

// served are the rows by PCI device id.
var served = sync.OnceValue(func() map[string]Served {
	all := map[string]Served{}
	for _, fields := range Rows("drivers.tsv", servedText, servedColumns) {
		all[fields[0]] = Served{
			Name:    fields[1],
			Modules: fields[2],
			First:   strings.Fields(fields[3]),
			Sources: strings.Fields(fields[4]),
			Month:   fields[5],
		}
	}

	return all
})

// ServedBy returns what the lists say of a PCI device id in lower case; false if no list has it.
func ServedBy(id string) (Served, bool) {
	row, listed := served()[id]
	return row, listed
}
