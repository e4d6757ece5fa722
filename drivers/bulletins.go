// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
)

// fix returns the first version of a branch with the newest security fixes that are known, and the bulletin that names it;
// "" if none does.
func (c Catalog) fix(branch int) (version string, by bulletinRow) {
	for _, b := range c.Bulletins {
		if v := b.Fixed[strconv.Itoa(branch)]; hardware.Compare(v, version) > 0 {
			version, by = v, b
		}
	}
	return version, by
}

// known is the day of the newest bulletin in the table.
func (c Catalog) known() (day string) {
	for _, b := range c.Bulletins {
		day = max(day, b.Published)
	}
	return day
}

// unfixed says in one line which security fixes a driver lacks, "" if it lacks none that is known. version may be a branch,
// which means its newest version. who names the driver in the sentence: "driver 580.95.05".
func (c Catalog) unfixed(who, version, day string) string {
	major, _, exact := strings.Cut(version, ".")
	branch, err := strconv.Atoi(major)
	if err != nil {
		return ""
	}
	fix, by := c.fix(branch)
	end := c.endOf(branch, day)
	lacks := exact && hardware.Compare(version, fix) < 0
	what := fmt.Sprintf("%s lacks the security fixes of NVIDIA's bulletin %s (%s), which %s has", who, by.ID, by.Published, fix)
	switch {
	case lacks && end != "":
		return fmt.Sprintf("%s; branch %d ended in %s, and no fix will come for what was found since", what, branch, end)
	case lacks:
		return what
	case end != "":
		return fmt.Sprintf("driver branch %d ended in %s: no security fix will come for it", branch, end)
	}
	return ""
}

// endOf returns when a branch ended, "" if it is not over on that day.
func (c Catalog) endOf(branch int, day string) string {
	for _, b := range c.Branches {
		if b.Branch == branch && b.ended(day) {
			return b.End
		} else if b.Branch == branch {
			break // the first row of a branch counts
		}
	}
	return ""
}

// forgetful is the age of the newest known bulletin from which gpuadm expects a newer one: NVIDIA publishes one each quarter.
const forgetful = 120 * 24 * time.Hour

// outdated notes which security fixes the loaded driver lacks, unless the choice already warns of it, and whether this release
// may not know the newest bulletins.
func (d Driver) outdated(ch Choice, f facts.Facts) (notes []string) {
	c, err := known(f)
	if err != nil || f.Modules == nil {
		return nil
	}
	is, who := f.Modules.Version, "the loaded driver "
	if is == "" && len(f.Modules.Libraries) > 0 {
		is, who = f.Modules.Libraries[0].Version, "the installed driver "
	}
	if is != "" && is != ch.Version {
		if s := c.unfixed(who+is, is, f.Day); s != "" && !slices.Contains(ch.Warnings, s) {
			notes = append(notes, s)
		}
	}
	newest, err1 := time.Parse(time.DateOnly, c.known())
	today, err2 := time.Parse(time.DateOnly, f.Day)
	if err1 == nil && err2 == nil && today.Sub(newest) > forgetful {
		notes = append(notes, "this release of gpuadm knows NVIDIA's security bulletins up to "+c.known()+": a newer release may know more")
	}
	return notes
}
