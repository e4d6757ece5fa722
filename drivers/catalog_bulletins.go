// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	_ "embed"
	"fmt"
	"sync"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/gputable"
)

// bulletinRow is a row of bulletins.tsv, which make facts writes: a security bulletin of NVIDIA's,
// and the first driver of a branch without its vulnerabilities.
type bulletinRow struct {
	branch, fixed, number, month string
}

//go:embed catalog/bulletins.tsv
var bulletinText string

var bulletinRows = sync.OnceValue(func() (rows []bulletinRow) {
	for _, row := range gputable.Rows("bulletins.tsv", bulletinText, 5) {
		rows = append(rows, bulletinRow{
			branch: row[0],
			fixed:  row[1],
			number: row[2],
			month:  row[3],
		})
	}
	return rows
})

// Vulnerable names the newest security bulletin about a driver, and the version of its branch that
// fixes all known ones; "" if none is known. A branch that has ended gets no bulletin any more:
// that is said elsewhere.
func Vulnerable(version string) string {
	var worst bulletinRow
	others := 0
	for _, r := range bulletinRows() {
		if !hardware.InBranch(version, r.branch) || hardware.Compare(version, r.fixed) >= 0 {
			continue
		}
		if worst.number != "" {
			others++
		}
		if hardware.Compare(r.fixed, worst.fixed) >= 0 {
			worst = r
		}
	}

	if worst.number == "" {
		return ""
	}

	more := ""
	switch {
	case others == 1:
		more = " and one older one"
	case others > 1:
		more = fmt.Sprintf(" and %d older ones", others)
	}

	const text = "driver %s has known vulnerabilities: NVIDIA's security bulletin %s of %s%s; %s of branch %s fixes them"
	return fmt.Sprintf(text, version, worst.number, worst.month, more, worst.fixed, worst.branch)
}
