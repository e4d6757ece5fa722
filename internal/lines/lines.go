// SPDX-License-Identifier: Apache-2.0

// Package lines takes an edit of a text file out of the file again, where another process
// has edited it since: line by line, exact to the byte. It knows no format, so its callers
// prove the result.
package lines

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// TakeOut takes the lines that an edit (before → after) wrote out of found, and restores those that
// it replaced. Every other byte stays, also a comment that another process put behind a line of the
// edit: the rest is the file with the edits of others alone. Lines of the edit stay where another
// process has changed them in part. ok is false where no line is taken out or restored.
//
// comment begins a comment behind a line; "" for a format that has none there.
func TakeOut(before, after, found []byte, comment string) (rest []byte, ok bool) {
	wasLines := linesOf(before)
	madeLines := linesOf(after)
	isLines := linesOf(found)
	kept, ok := matches(wasLines, madeLines)
	if !ok {
		return nil, false
	}
	if comment != "" {
		setAside(isLines, madeLines, comment)
	}
	seen, ok := matches(madeLines, isLines)
	if !ok {
		return nil, false
	}

	if uniform(after) && breakOf(found) != breakOf(after) { // another process has converted all lines
		for i := range wasLines {
			wasLines[i].end = ""
		}
	}

	m := merge{
		before: wasLines,
		found:  isLines,
		at:     places(seen, len(madeLines)),

		gone:     map[int]bool{},
		restored: map[int]hunk{},
	}
	for _, h := range hunksOf(kept, len(wasLines)) {
		m.takeOut(h, madeLines)
	}
	if len(m.gone) == 0 && len(m.restored) == 0 {
		return nil, false
	}

	originOf := func(foundLine int) int { // the line before the edit, -1 for none
		if seen[foundLine] < 0 {
			return -1
		}
		return kept[seen[foundLine]]
	}

	all, endsAsBefore := m.lines(originOf)
	return join(all, breakOf(found), endsInBreak(before, after, found, endsAsBefore)), true
}

// Exact is the rest of found as TakeOut has it, where means says that it means what the rest by
// values means; else the rest by values, with the end that Ended gives it.
func Exact(before, after, found, rest []byte, means func(exact []byte) bool) []byte {
	exact, ok := TakeOut(before, after, found, "")
	if ok && means(exact) {
		return exact
	}
	return Ended(before, after, found, rest)
}

// Ended is a rest of found with the line break at its end that it had before the edit, or has none,
// if its last line is the one from before the edit.
func Ended(before, after, found, rest []byte) []byte {
	all := linesOf(rest)
	wasLines := linesOf(before)
	if len(all) == 0 || len(wasLines) == 0 || all[len(all)-1].text != wasLines[len(wasLines)-1].text {
		return rest
	}
	return join(all, breakOf(found), endsInBreak(before, after, found, true))
}

// A line is the text of a line and its line break, "" at the end of a file without one.
type line struct {
	text  string
	aside string // the comment that another process put behind the text, with the space between
	end   string
}

func linesOf(data []byte) (lines []line) {
	for l := range bytes.Lines(data) {
		text := bytes.TrimRight(l, "\r\n")
		lines = append(lines, line{text: string(text), end: string(l[len(text):])})
	}
	return lines
}

// setAside tells in found the comments of another process from the lines of after that they are
// behind.
func setAside(found, after []line, comment string) {
	written := map[string]bool{}
	longest := 0
	for _, l := range after {
		written[l.text] = !l.isBlank()
		longest = max(longest, len(l.text))
	}

	isWritten := func(text string) bool { return len(text) <= longest && written[text] }
	for i, l := range found {
		if !isWritten(l.text) {
			found[i].text, found[i].aside = cutAside(l.text, comment, isWritten)
		}
	}
}

// cutAside cuts a text before the comment that is behind a written text.
func cutAside(text, comment string, isWritten func(text string) bool) (before, aside string) {
	for at := range text {
		if !strings.HasPrefix(text[at:], comment) {
			continue
		}
		before = strings.TrimRight(text[:at], blanks)
		if isWritten(before) {
			return before, text[len(before):]
		}
	}
	return text, ""
}

const blanks = " \t"

// onlyAside is the comment of another process as a line of its own.
func (l line) onlyAside() line {
	indent := l.text[:len(l.text)-len(strings.TrimLeft(l.text, blanks))]
	return line{text: indent + strings.TrimLeft(l.aside, blanks), end: l.end}
}

func (l line) isBlank() bool { return strings.TrimSpace(l.text) == "" }

// mostCells bounds the memory of a comparison: two files that differ in a thousand lines each are
// no edit of each other.
const mostCells = 1 << 20

// matches has for each line of b the line of a that it is, or -1: the longest common sequence of
// lines, without regard to line breaks. ok is false where the two differ too much.
func matches(a, b []line) (of []int, ok bool) {
	of = make([]int, len(b))
	from, toA, toB := differing(a, b)
	for i := range from {
		of[i] = i
	}
	for i := toB; i < len(b); i++ {
		of[i] = toA + i - toB
	}

	a = a[from:toA]
	b = b[from:toB]
	if (len(a)+1)*(len(b)+1) > mostCells {
		return nil, false
	}
	common := commonLengths(a, b)
	i := 0
	for j := range b {
		of[from+j] = -1
		for i < len(a) && common[i+1][j] == common[i][j] && a[i].text != b[j].text {
			i++
		}
		if i < len(a) && a[i].text == b[j].text {
			of[from+j] = from + i
			i++
		}
	}

	return of, true
}

// differing returns where a and b begin to differ, and where in each of them they have ended to.
func differing(a, b []line) (from, toA, toB int) {
	for from < len(a) && from < len(b) && a[from].text == b[from].text {
		from++
	}
	toA = len(a)
	toB = len(b)
	for toA > from && toB > from && a[toA-1].text == b[toB-1].text {
		toA--
		toB--
	}

	return from, toA, toB
}

// commonLengths has in row i and column j the length of the longest sequence that a has from line i
// on and b from line j on.
func commonLengths(a, b []line) [][]uint16 {
	common := make([][]uint16, len(a)+1)
	for i := range common {
		common[i] = make([]uint16, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i].text == b[j].text {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}

	return common
}

// places turns matches round: for each of n lines of a the line of b that it is, or -1.
func places(of []int, n int) []int {
	at := slices.Repeat([]int{-1}, n)
	for j, i := range of {
		if i >= 0 {
			at[i] = j
		}
	}

	return at
}

// A hunk is a part of the edit: lines of before from b0 to b1 became lines of after from a0 to
// a1.
type hunk struct{ b0, b1, a0, a1 int }

func hunksOf(kept []int, before int) (hunks []hunk) {
	h := hunk{}
	add := func(b, a int) {
		h.b1 = b
		h.a1 = a
		if h.b1 > h.b0 || h.a1 > h.a0 {
			hunks = append(hunks, h)
		}
		h = hunk{b0: b + 1, a0: a + 1}
	}

	for a, b := range kept {
		if b >= 0 {
			add(b, a)
		}
	}

	add(before, len(kept))
	return hunks
}

// A merge says which lines of found go, and which of before come back.
type merge struct {
	before, found []line
	at            []int // for each line of after the line of found that it is, or -1

	gone     map[int]bool // lines of found
	restored map[int]hunk // whose lines of before come back above that line of found
}

// takeOut reverts a hunk. The hunk stays where only a part of it is in found, except where another
// process has removed lines of it and did nothing else.
func (m *merge) takeOut(h hunk, after []line) {
	text, blank, missing := m.find(h, after)
	wroteText := len(text)+missing > 0
	replaced := h.b1 > h.b0

	if replaced && !wroteText { // the edit removed lines
		place, ok := m.between(h.a0, h.a1)
		if ok {
			m.restored[place] = h
			m.remove(blank, h)
		}
		return
	}

	if len(text) == 0 {
		return // a blank line without the edit's lines may be another process's
	}
	othersRemovedLines := missing > 0 && !replaced && m.together(text, h)
	if missing > 0 && !othersRemovedLines {
		return
	}

	if replaced {
		m.restored[text[0]] = h
	}
	m.remove(text, h)
	m.remove(blank, h)
}

// find returns the lines of found that a hunk wrote, those with text and the blank ones, and how
// many of the hunk's lines with text are missing.
func (m *merge) find(h hunk, after []line) (text, blank []int, missing int) {
	for i := h.a0; i < h.a1; i++ {
		at := m.at[i]
		isFound := at >= 0
		isBlank := after[i].isBlank()

		switch {
		case isFound && isBlank:
			blank = append(blank, at)
		case isFound:
			text = append(text, at)
		case !isBlank:
			missing++
		}
	}

	return text, blank, missing
}

// remove takes lines of a hunk out of found.
func (m *merge) remove(lines []int, h hunk) {
	for _, line := range lines {
		m.gone[line] = true
		m.moveAside(line, h)
	}
}

// moveAside puts a comment that another process wrote behind a line of the edit behind the line
// that comes back for the same key. Where none does, the comment stays behind.
func (m *merge) moveAside(line int, h hunk) {
	found := &m.found[line]
	for i := h.b0; i < h.b1; i++ {
		sameKey := keyOf(m.before[i].text) == keyOf(found.text)
		if sameKey && m.before[i].aside == "" {
			m.before[i].aside = found.aside
			found.aside = ""
			return
		}
	}
}

// keyOf is the part of a line that names its key.
func keyOf(text string) string {
	key, _, _ := strings.Cut(text, "=")
	return strings.TrimSpace(key)
}

// together says whether all lines of found between the first and the last of these are of the hunk.
func (m *merge) together(present []int, h hunk) bool {
	first := present[0]
	last := present[len(present)-1]
	ofHunk := 0
	for _, at := range m.at[h.a0:h.a1] {
		if first <= at && at <= last {
			ofHunk++
		}
	}

	return ofHunk == last-first+1
}

// between is the line of found above which lines belong that the edit removed between two
// of its lines.
func (m *merge) between(above, below int) (place int, ok bool) {
	switch {
	case above == 0:
		return 0, true
	case m.at[above-1] >= 0:
		return m.at[above-1] + 1, true
	case below < len(m.at) && m.at[below] >= 0:
		return m.at[below], true
	}
	return 0, false
}

// lines are those that remain, and whether they end as the file did before the edit: in its last
// line, or where the lines of the edit were the last.
func (m *merge) lines(originOf func(foundLine int) int) (all []line, endsAsBefore bool) {
	last := len(m.before) - 1
	for j := range len(m.found) + 1 {
		h := m.restored[j]
		if h.b1 > h.b0 {
			all = append(all, m.before[h.b0:h.b1]...)
			endsAsBefore = h.b1-1 == last
		}
		switch {
		case j == len(m.found):
		case !m.gone[j]:
			all = append(all, m.found[j])
			endsAsBefore = originOf(j) == last
		case m.found[j].aside != "":
			all = append(all, m.found[j].onlyAside())
			endsAsBefore = false
		case len(all) > 0 && !all[len(all)-1].isBlank(): // a blank line may be another process's
			endsAsBefore = true
		}
	}

	return all, endsAsBefore
}

// endsInBreak says whether the rest ends in a line break: as found, if another process has changed
// that or the last line is another process's; else as before the edit.
func endsInBreak(before, after, found []byte, endsAsBefore bool) bool {
	ends := func(data []byte) bool { return bytes.HasSuffix(data, []byte("\n")) }
	asLeft := ends(found) == ends(after)
	if asLeft && endsAsBefore && len(before) > 0 {
		return ends(before)
	}
	return ends(found)
}

// breakOf is the line break that most lines end in.
func breakOf(data []byte) string {
	crlf := bytes.Count(data, []byte("\r\n"))
	if crlf > 0 && crlf*2 >= bytes.Count(data, []byte("\n")) {
		return "\r\n"
	}
	return "\n"
}

// uniform says whether all lines end in the same way.
func uniform(data []byte) bool {
	crlf := bytes.Count(data, []byte("\r\n"))
	return crlf == 0 || crlf == bytes.Count(data, []byte("\n"))
}

// join gives lines that have none a line break, and the last one if ends says so.
func join(all []line, lineBreak string, ends bool) []byte {
	var out bytes.Buffer
	for i, l := range all {
		out.WriteString(l.text + l.aside)
		isLast := i == len(all)-1
		if !isLast || ends {
			out.WriteString(cmp.Or(l.end, lineBreak))
		}
	}

	return out.Bytes()
}
