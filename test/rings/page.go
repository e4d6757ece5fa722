// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// writePage writes the page of the night.
func (b *book) writePage(n night) error {
	page, err := b.page(n)
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, []byte(page), 0o644)
}

// page is one page about all rings: each with its last run, on whichever commit that was.
func (b *book) page(n night) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "# The night of %s\n\n", n.Commit)
	b.writeMissing(&out, n)
	out.WriteString("| ring | result | commit | began, UTC | time | passed | failed | skipped | not run | turn and seed |\n" +
		"|---|---|---|---|---|---|---|---|---|---|\n")

	var details strings.Builder
	for _, ring := range nightRings() {
		for _, r := range b.recordsOf(ring) {
			o, err := b.outcome(r)
			if err != nil {
				return "", err
			}
			commit := r.Commit
			if r.Commit != n.Commit {
				commit += " (older)"
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | %d | %d | %d | %d | %s |\n", r.title(), r.word(o), commit,
				r.Began.UTC().Format("2006-01-02 15:04"), b.took(r).Round(time.Second),
				o.passed, len(o.failed), len(o.skips), len(o.notRun), r.Turn)
			b.writeDetails(&details, r, o)
		}
	}

	return out.String() + details.String(), nil
}

// writeMissing names the rings, and the parts of rings, that have not ended on the night's commit.
func (b *book) writeMissing(out *strings.Builder, n night) {
	var missing, parts []string
	for _, ring := range nightRings() {
		if part := b.part(ring, n); !b.has(ring, part, n) {
			missing = append(missing, ring.name)
		}
		if ring.parts > 0 {
			parts = append(parts, b.partsText(ring, n))
		}
	}

	if len(missing) == 0 {
		out.WriteString("All rings have run on this commit.\n")
	} else {
		fmt.Fprintf(out, "Not run to the end on this commit, %d of %d rings: %s. `make nightly` runs them.\n",
			len(missing), len(nightRings()), strings.Join(missing, ", "))
	}

	fmt.Fprintf(out, "\n%s\n\n", strings.Join(parts, "\n"))
}

// partsText says which part of a ring the night runs, and which parts no night has run.
func (b *book) partsText(ring nightRing, n night) string {
	never := ring.parts
	for _, r := range b.recordsOf(ring) {
		if r.Ended {
			never--
		}
	}

	text := fmt.Sprintf("%s: this night runs part %s.", ring.name, b.part(ring, n))
	if never > 0 {
		text += fmt.Sprintf(" %d parts have not run to their end yet.", never)
	}
	return text
}

// recordsOf are the records of a ring, in the order of its parts.
func (b *book) recordsOf(ring nightRing) (found []record) {
	for _, r := range b.records {
		isPart := ring.parts == 0 || strings.HasSuffix(r.Part, fmt.Sprintf("/%d", ring.parts))
		if r.Ring == ring.name && isPart {
			found = append(found, r)
		}
	}

	slices.SortFunc(found, func(a, b record) int { return a.number() - b.number() })
	return found
}

// number is a part's: 3 of "3/12".
func (r record) number() (number int) {
	fmt.Sscanf(r.Part, "%d/", &number)
	return number
}

func (r record) title() string { return strings.TrimSpace(r.Ring + " " + r.Part) }

// couldNotLook is the exit code of a ring that did not get at what it looks at, as gpuadm's own.
const couldNotLook = 75

// word is the ring's result.
func (r record) word(o outcome) string {
	switch {
	case !r.Ended:
		return "CUT SHORT"
	case r.passed(o):
		return "passed"
	case r.Exit == couldNotLook:
		return "COULD NOT LOOK"
	}
	return "FAILED"
}

// took is how long all runs of a ring took, also of one that was killed.
func (b *book) took(r record) time.Duration {
	if r.Ended {
		return r.Took
	}
	return r.Took + r.sinceBegan(b.log(r))
}

// writeDetails names what failed, was skipped, or did not run.
func (b *book) writeDetails(out *strings.Builder, r record, o outcome) {
	isFine := r.passed(o) && len(o.skips) == 0
	if isFine {
		return
	}

	fmt.Fprintf(out, "\n## %s\n", r.title())
	for _, name := range o.failed {
		fmt.Fprintf(out, "- failed: %s\n", name)
	}
	for _, name := range o.notRun {
		fmt.Fprintf(out, "- not run to its end: %s\n", name)
	}
	for _, name := range slices.Sorted(maps.Keys(o.skips)) {
		fmt.Fprintf(out, "- skipped: %s: %s\n", name, o.skips[name])
	}
	if r.Ended && r.Exit != 0 && len(o.failed) == 0 {
		fmt.Fprintf(out, "- its command ended with %d: %s\n", r.Exit, b.log(r))
	}
}
