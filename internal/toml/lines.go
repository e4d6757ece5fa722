// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// byLines takes the lines that gpuadm wrote out of found, and restores those that it replaced. Every
// other byte stays, so the rest is the file with the edits of others alone. ok is false where
// another process has changed lines of gpuadm's in part.
func (u *TakingOut) byLines() (rest []byte, ok bool) {
	before := linesOf(u.before)
	after := linesOf(u.after)
	found := linesOf(u.found)
	kept, ok := matches(before, after)
	if !ok {
		return nil, false
	}
	seen, ok := matches(after, found)
	if !ok {
		return nil, false
	}

	if u.converted() { // lines that come back, too
		for i := range before {
			before[i].end = ""
		}
	}
	m := lineMerge{before: before, found: found, at: places(seen, len(after))}
	for _, h := range hunksOf(kept, len(before)) {
		if !m.takeOut(h, after) {
			return nil, false
		}
	}
	if len(m.gone) == 0 && len(m.restored) == 0 {
		return nil, false
	}

	originOf := func(foundLine int) int { // the line before gpuadm's edit, -1 for none
		if seen[foundLine] < 0 {
			return -1
		}
		return kept[seen[foundLine]]
	}
	lines, endsAsBefore := m.lines(originOf)
	return joinLines(lines, eolOf(u.found), u.endsInBreak(endsAsBefore)), true
}

// A line is the text of a line and its line break, "" at the end of a file without one.
type line struct{ text, end string }

func linesOf(data []byte) (lines []line) {
	for l := range bytes.Lines(data) {
		text := bytes.TrimRight(l, "\r\n")
		lines = append(lines, line{string(text), string(l[len(text):])})
	}
	return lines
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

// A hunk is a part of gpuadm's edit: lines of before from b0 to b1 became lines of after from a0 to
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

// A lineMerge says which lines of found go, and which of before come back.
type lineMerge struct {
	before, found []line
	at            []int // for each line that gpuadm left the line of found that it is, or -1

	gone     map[int]bool // lines of found
	restored map[int]hunk // whose lines of before come back above that line of found
}

// takeOut reverts a hunk. It returns false where only a part of the hunk is in found, except where
// another process has removed lines of it and did nothing else.
func (m *lineMerge) takeOut(h hunk, after []line) bool {
	if m.gone == nil {
		m.gone = map[int]bool{}
		m.restored = map[int]hunk{}
	}
	var present, blank []int // lines of found
	missing := 0
	for i := h.a0; i < h.a1; i++ {
		switch at := m.at[i]; {
		case after[i].isBlank() && at >= 0:
			blank = append(blank, at)
		case after[i].isBlank():
		case at >= 0:
			present = append(present, at)
		default:
			missing++
		}
	}

	removedOnly := len(present)+missing == 0
	replaced := h.b1 > h.b0
	switch {
	case removedOnly && replaced:
		place, ok := m.between(h.a0, h.a1)
		if !ok {
			return false
		}
		m.restored[place] = h
	case len(present) > 0 && missing > 0 && (replaced || !m.together(present, h)):
		return false
	case len(present) == 0:
		return true // a blank line without gpuadm's lines may be another process's
	case replaced:
		m.restored[present[0]] = h
	}
	for _, line := range slices.Concat(present, blank) {
		m.gone[line] = true
	}
	return true
}

// together says whether all lines of found between the first and the last of these are of the hunk.
func (m *lineMerge) together(present []int, h hunk) bool {
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

// between is the line of found above which lines belong that gpuadm removed between two of its
// lines.
func (m *lineMerge) between(above, below int) (place int, ok bool) {
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

// lines are those that remain, and whether the last of them is the last one before gpuadm's edit.
func (m *lineMerge) lines(originOf func(foundLine int) int) (all []line, endsAsBefore bool) {
	last := len(m.before) - 1
	for j := range len(m.found) + 1 {
		h := m.restored[j]
		if h.b1 > h.b0 {
			all = append(all, m.before[h.b0:h.b1]...)
			endsAsBefore = h.b1-1 == last
		}
		if j < len(m.found) && !m.gone[j] {
			all = append(all, m.found[j])
			endsAsBefore = originOf(j) == last
		}
	}
	return all, endsAsBefore
}

// endsInBreak says whether the rest ends in a line break: as found, if another process has changed
// that or the last line is another process's; else as before gpuadm's edit.
func (u *TakingOut) endsInBreak(endsAsBefore bool) bool {
	ends := func(data []byte) bool { return bytes.HasSuffix(data, []byte("\n")) }
	asLeft := ends(u.found) == ends(u.after)
	if asLeft && endsAsBefore && len(u.before) > 0 {
		return ends(u.before)
	}
	return ends(u.found)
}

// converted says whether another process has given the lines other line breaks.
func (u *TakingOut) converted() bool {
	return uniform(u.after) && eolOf(u.found) != eolOf(u.after)
}

func eolOf(data []byte) string { return (&Doc{src: data}).eol() }

// uniform says whether all lines end in the same way.
func uniform(data []byte) bool {
	crlf := bytes.Count(data, []byte("\r\n"))
	return crlf == 0 || crlf == bytes.Count(data, []byte("\n"))
}

// joinLines gives lines that have none a line break, and the last one if ends says so.
func joinLines(lines []line, eol string, ends bool) []byte {
	var out bytes.Buffer
	for i, l := range lines {
		out.WriteString(l.text)
		isLast := i == len(lines)-1
		if !isLast || ends {
			out.WriteString(cmp.Or(l.end, eol))
		}
	}
	return out.Bytes()
}
