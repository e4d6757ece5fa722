// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// change is what a Linux release changed, by Debian's changelog: words of a driver's sources, each
// with a driver that has it.
type change struct {
	Linux string
	From  map[string]string // the driver, by word
	Typed map[string]bool   // the words of words.tsv, which Debian's changelog does not name
	Named []string          // all drivers that the changelog names, also for what has no word
	Month string            // of the changelog's newest entry about it
}

// bad is a row of kernels.tsv: up to Through, no driver of the branch builds on this Linux or
// a newer one.
type bad struct {
	Linux, Branch, Through string
	Words                  []string
	Sources                []string
	Month                  string
}

// patch is a row of a distribution's list of patches: a Linux release, and the drivers
// that need it.
type patch struct{ linux, from, through string }

var (
	entryHead  = regexp.MustCompile(`(?m)^nvidia-\S+ \(`)
	entryDate  = regexp.MustCompile(`(?m)^ -- .*  (\w{3}, +\d+ \w{3} \d{4}) `)
	entryItem  = regexp.MustCompile(`\n\s+[*-] `)
	fromDriver = regexp.MustCompile(`\bfrom (\d{3}\.\d+(?:\.\d+)?)`)
	forLinux   = regexp.MustCompile(`build for Linux (\d+\.\d+)`)
	sourceWord = regexp.MustCompile(`\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b`)
)

// debianChanges reads changelogs of Debian's packages of the driver: "Backport WORD and WORD
// changes from DRIVER and WORD changes from DRIVER to fix kernel module build for Linux 6.19".
func debianChanges(texts []string) (all []change) {
	byLinux := map[string]*change{}
	for _, text := range texts {
		for _, entry := range entriesOf(text) {
			month := ""
			if m := entryDate.FindStringSubmatch(entry); m != nil {
				date, err := time.Parse("Mon, 2 Jan 2006", strings.Join(strings.Fields(m[1]), " "))
				if err == nil {
					month = date.Format("2006-01")
				}
			}

			for _, item := range entryItem.Split(entry, -1) {
				addItem(byLinux, strings.Join(strings.Fields(item), " "), month)
			}
		}
	}

	for _, linux := range slices.SortedFunc(maps.Keys(byLinux), compare) {
		all = append(all, *byLinux[linux])
	}
	return all
}

func entriesOf(text string) (entries []string) {
	heads := entryHead.FindAllStringIndex(text, -1)
	for i, head := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		entries = append(entries, text[head[0]:end])
	}

	return entries
}

// addItem adds what one item of a changelog says.
func addItem(byLinux map[string]*change, item, month string) {
	linux := forLinux.FindStringSubmatch(item)
	drivers := fromDriver.FindAllStringSubmatchIndex(item, -1)
	if linux == nil || len(drivers) == 0 {
		return
	}

	c := byLinux[linux[1]]
	if c == nil {
		c = &change{Linux: linux[1], From: map[string]string{}}
		byLinux[linux[1]] = c
	}
	c.Month = max(c.Month, month)
	begin := 0
	for _, at := range drivers {
		driver := item[at[2]:at[3]]
		c.Named = append(c.Named, driver)
		for _, word := range sourceWord.FindAllString(item[begin:at[0]], -1) {
			c.From[word] = driver
		}
		begin = at[1]
	}
}

// word is a row of words.tsv.
type word struct{ linux, word, driver, month string }

// readWords reads the words that Debian's changelog does not name.
func readWords(name string) (all []word, err error) {
	rows, err := readRows(name, 6)
	for _, row := range rows {
		all = append(all, word{
			linux:  row[0],
			word:   row[1],
			driver: row[2],
			month:  row[5],
		})
	}

	return all, err
}

// addWords adds the words of words.tsv to what Debian's changelog says of their Linux release.
func addWords(changes []change, words []word) []change {
	for _, w := range words {
		isOf := func(c change) bool { return c.Linux == w.linux }
		i := slices.IndexFunc(changes, isOf)
		if i < 0 {
			i = len(changes)
			changes = append(changes, change{Linux: w.linux, From: map[string]string{}})
		}

		c := &changes[i]
		c.From[w.word] = w.driver
		c.Month = max(c.Month, w.month)
		if c.Typed == nil {
			c.Typed = map[string]bool{}
		}
		c.Typed[w.word] = true
	}

	slices.SortFunc(changes, func(a, b change) int { return compare(a.Linux, b.Linux) })
	return changes
}

// patchRows reads the list of patches of nvidia-all: its columns are said at its head. A patch with
// a flag is a user's choice.
func patchRows(text string) (all []patch) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 || f[0] != "open" || len(f) > 8 && f[8] != "-" {
			continue
		}
		if strings.Contains(f[1], "/kernel-"+f[2]+".") {
			all = append(all, patch{linux: f[2], from: f[4], through: f[5]})
		}
	}
	return all
}

// throughIn is the last driver of a branch that needs the patch; "" if none does. A patch that
// begins within a branch says nothing of it.
func (p patch) throughIn(branch string) string {
	begins := branchOf(p.from)
	isLater := p.from == "-" || p.from == branch || compare(branch, begins) > 0
	if !isLater {
		return ""
	}
	switch {
	case p.through == "-" || compare(branch, branchOf(p.through)) < 0:
		return branch + ".9999"
	case branch == branchOf(p.through):
		return p.through
	}

	return ""
}

// knowledge says which words the sources of each release have.
type knowledge struct {
	releases []string // in order
	has      map[string]map[string]bool
}

// readKnowledge reads the sources of all releases.
func readKnowledge(r records, changes []change) (k knowledge, err error) {
	var words []string
	for _, c := range changes {
		words = slices.AppendSeq(words, maps.Keys(c.From))
	}
	slices.Sort(words)
	words = slices.Compact(words)

	tags, err := r.tags()
	if err != nil {
		return k, err
	}
	k.releases = slices.DeleteFunc(tags, func(tag string) bool { return !isRelease(tag) })
	slices.SortFunc(k.releases, compare)
	k.has = map[string]map[string]bool{}
	for _, tag := range k.releases {
		k.has[tag], err = r.words(tag, "kernel-open", words)
		if err != nil {
			return k, err
		}
	}

	return k, nil
}

// of lists the releases of a branch.
func (k knowledge) of(branch string) []string {
	isOther := func(release string) bool { return branchOf(release) != branch }
	return slices.DeleteFunc(slices.Clone(k.releases), isOther)
}

func (k knowledge) branches() (all []string) {
	for _, release := range k.releases {
		all = append(all, branchOf(release))
	}
	return slices.Compact(all)
}

// first is the first release of a branch with a word; "" if none has it.
func (k knowledge) first(branch, word string) string {
	for _, release := range k.of(branch) {
		if k.has[release][word] {
			return release
		}
	}
	return ""
}

// marks says whether a word tells drivers that know a change from those that do not: the
// driver that Debian names has it, none of its branch has it before, and no older branch had
// it at its beginning.
func (k knowledge) marks(word, driver string) bool {
	if has, known := k.has[driver]; known && !has[word] {
		return false
	}
	first := k.first(branchOf(driver), word)
	if first != "" && compare(first, driver) < 0 {
		return false
	}
	for _, branch := range k.branches() {
		if compare(branch, branchOf(driver)) < 0 && k.has[k.of(branch)[0]][word] {
			return false
		}
	}

	return true
}

// lacking is the last release of a branch without a word; "" if all have it. Where no release of
// the branch has it, one of a later branch must, or none at all: else it may have got another name.
func (k knowledge) lacking(branch, word string) string {
	releases := k.of(branch)
	first := k.first(branch, word)
	if i := slices.Index(releases, first); i >= 0 {
		if i == 0 {
			return ""
		}
		return releases[i-1]
	}

	anywhere := false
	later := false
	for _, other := range k.branches() {
		if k.first(other, word) != "" {
			anywhere = true
			later = later || compare(other, branch) > 0
		}
	}

	if anywhere && !later {
		return ""
	}
	return releases[len(releases)-1]
}

// kernelRows says, for each Linux release and branch, up to which driver two of three records say
// that it does not build: the driver's own sources, by the words that Debian's changelog names;
// Debian's changelog, by the driver; and a distribution's list of patches.
func kernelRows(k knowledge, changes []change, patches []patch) (rows []bad) {
	known := slices.Clone(k.releases)
	for _, c := range changes {
		known = append(known, c.Named...)
	}
	slices.SortFunc(known, compare)
	known = slices.Compact(known)

	for i, c := range changes {
		newer := k.marksOf(changes[i+1:])
		for _, branch := range k.branches() {
			if row, ok := k.row(c, branch, newer, known, patches); ok {
				rows = append(rows, row)
			}
		}
	}

	return rows
}

// marksOf lists the words of changes that tell drivers apart.
func (k knowledge) marksOf(changes []change) (words []string) {
	for _, c := range changes {
		for _, word := range slices.Sorted(maps.Keys(c.From)) {
			if k.marks(word, c.From[word]) {
				words = append(words, word)
			}
		}
	}
	return words
}

// before is the last release of a branch, up to one, before a release that has one of the words of
// a newer Linux: who knows that builds on the older one too, by another word or without it.
func (k knowledge) before(branch, through string, newer []string) (last string) {
	for _, release := range k.of(branch) {
		knows := func(word string) bool { return k.has[release][word] }
		if compare(release, through) > 0 || slices.ContainsFunc(newer, knows) {
			break
		}
		last = release
	}
	return last
}

// row says up to which driver of a branch two records agree that it does not build on a Linux
// release; ok is false where they agree on none.
func (k knowledge) row(
	c change, branch string, newer, known []string, patches []patch,
) (row bad, ok bool) {
	row = bad{Linux: c.Linux, Branch: branch, Month: c.Month}
	byDebian := "" // the last driver for which Debian's changelog is one of the two records
	for _, word := range k.marksOf([]change{c}) {
		through := k.before(branch, k.lacking(branch, word), newer)
		if through == "" {
			continue
		}
		row.Words = append(row.Words, word)
		row.Through = later(row.Through, through)
		if !c.Typed[word] {
			byDebian = later(byDebian, through)
		}
	}

	named := lastBeforeNamed(c.Named, branch, known)
	patched := lastPatched(patches, c.Linux, branch)
	if named != "" && patched != "" {
		byDebian = later(byDebian, earlier(named, patched))
		row.Through = later(row.Through, byDebian)
	}
	if row.Through == "" {
		return row, false
	}

	if len(row.Words) > 0 {
		row.Sources = append(row.Sources, "conftest")
	}
	if byDebian == row.Through {
		row.Sources = append(row.Sources, "debian")
	}
	if patched != "" && compare(patched, row.Through) >= 0 {
		row.Sources = append(row.Sources, "nvidia-all")
	}
	return row, true
}

// lastBeforeNamed is the last driver of a branch before one that Debian's changelog names; "" if it
// names none of the branch.
func lastBeforeNamed(named []string, branch string, known []string) (last string) {
	for _, driver := range named {
		i := slices.Index(known, driver)
		if i <= 0 || branchOf(driver) != branch {
			continue
		}
		before := known[i-1]
		if branchOf(before) == branch {
			last = later(last, before)
		}
	}
	return last
}

// lastPatched is the last driver of a branch that needs a patch for a Linux release; ""
// if none does.
func lastPatched(patches []patch, linux, branch string) (last string) {
	for _, p := range patches {
		if p.linux == linux {
			last = later(last, p.throughIn(branch))
		}
	}
	return last
}

func later(a, b string) string {
	if a == "" || b != "" && compare(b, a) > 0 {
		return b
	}
	return a
}

func earlier(a, b string) string {
	if compare(b, a) < 0 {
		return b
	}
	return a
}

// kernelTable writes the rows as text.
func kernelTable(rows []bad, k knowledge) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# SPDX-License-Identifier: Apache-2.0
#
# Made by make facts: do not edit. Drivers that do not build on a Linux release or a newer one: those of a branch up
# to the one named. Two of three records say so: the sources of NVIDIA's open modules, which lack the words;
# Debian's changelog, which names the words and the drivers that have them; nvidia-all's list of patches. A word that
# Debian's changelog does not name is a row of images/build/facts/words.tsv.
# It is not so of packages that a distribution patches. Of drivers after the newest release of a branch in the
# records nothing is said, and the records end at %s.
#
# linux	branch	through	words	sources	month
`, k.releases[len(k.releases)-1])
	for _, r := range rows {
		words := strings.Join(r.Words, " ")
		if words == "" {
			words = "-"
		}
		fields := []string{r.Linux, r.Branch, r.Through, words, strings.Join(r.Sources, " "), r.Month}
		b.WriteString(strings.Join(fields, "\t") + "\n")
	}

	return b.String()
}

// readChangelogs reads the changelogs in a folder, packed or not.
func readChangelogs(folder string) (texts []string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "debian", "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".gz") {
			unpacked, err := gzip.NewReader(bytes.NewReader(data))
			if err == nil {
				data, err = io.ReadAll(unpacked)
			}
			if err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", name, err)
			}
		}

		texts = append(texts, string(data))
	}

	if len(texts) == 0 {
		return nil, fmt.Errorf("cannot read %s/debian: it has no changelog of Debian's packages of the driver", folder)
	}
	return texts, nil
}

// makeKernels makes the table of drivers and kernels.
func makeKernels(folder string) error {
	texts, err := readChangelogs(folder)
	if err != nil {
		return err
	}
	words, err := readWords("images/build/facts/words.tsv")
	if err != nil {
		return err
	}
	changes := addWords(debianChanges(texts), words)
	sources, err := open(folder, "open-gpu-kernel-modules")
	if err != nil {
		return err
	}
	k, err := readKnowledge(sources, changes)
	if err != nil {
		return err
	}
	list, err := open(folder, "nvidia-all")
	if err != nil {
		return err
	}
	text, err := list.read("HEAD", "nvidia-all-patches/patches.list")
	if err != nil {
		return err
	}
	rows := kernelRows(k, changes, patchRows(string(text)))
	return write("drivers/catalog/kernels.tsv", kernelTable(rows, k))
}
