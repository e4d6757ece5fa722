// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	_ "embed"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/gputable"
)

// kernelRow is a row of kernels.tsv, which make facts writes: up to a driver, no driver of a branch
// builds on a Linux release or a newer one.
type kernelRow struct {
	linux, branch, through string
	month                  string
}

//go:embed catalog/kernels.tsv
var kernelText string

// kernelRows are in the order of the Linux releases.
var kernelRows = sync.OnceValue(func() (rows []kernelRow) {
	for _, row := range gputable.Rows("kernels.tsv", kernelText, 6) {
		rows = append(rows, kernelRow{
			linux:   row[0],
			branch:  row[1],
			through: row[2],
			month:   row[5],
		})
	}
	return rows
})

// tooOldFor says why NVIDIA's own modules of a version do not build for a kernel, by the Linux
// release that asks for the newest driver; "" if nothing is known. RHEL's kernels have changes of
// newer releases under an old number, of which the table says nothing.
func tooOldFor(version, kernel string) string {
	linux := hardware.LeadingNumbers(kernel)
	if version == "" || linux == "" {
		return ""
	}

	var worst kernelRow
	for _, r := range kernelRows() {
		concerned := hardware.InBranch(version, r.branch) &&
			hardware.Compare(version, r.through) <= 0 &&
			hardware.Compare(linux, r.linux) >= 0
		if concerned && hardware.Compare(r.through, worst.through) >= 0 {
			worst = r
		}
	}

	if worst.branch == "" {
		return ""
	}
	const why = "its modules do not compile against Linux %s, whose changes they do not know; of branch %s a driver newer than %s may (as of %s)"
	return fmt.Sprintf(why, worst.linux, worst.branch, worst.through, worst.month)
}

// buildsNVIDIAs says whether NVIDIA's own sources are built here: distributions patch theirs, and
// ready-made modules are built already.
func (p *plan) buildsNVIDIAs() bool {
	sources := []string{SourceNVIDIA, SourceAmazon, SourceRunfile}
	return slices.Contains(sources, p.choice.Source) && !p.choice.Precompiled
}
