// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"slices"
)

// lineHunk says that lines [a0,a1) of one text became lines [b0,b1) of another.
type lineHunk struct{ a0, a1, b0, b1 int }

// byLines turns our hunks back where others changed nothing of them: three-way merge with our edit reversed.
func (u *TakingOut) byLines() []byte {
	before, after, found := SplitLines(u.before), SplitLines(u.after), SplitLines(u.found)
	theirs := DiffLines(after, found)
	out, eol := slices.Clone(found), eolOf(u.found)
	for _, h := range slices.Backward(DiffLines(before, after)) {
		shift, changed := 0, false
		for _, t := range theirs {
			switch {
			case t.a1 <= h.b0:
				shift = t.b1 - t.a1
			case t.a0 < h.b1:
				changed = true
			}
		}
		if changed {
			continue
		}
		back := slices.Clone(before[h.a0:h.a1])
		for i := range back {
			back[i] = withEOL(back[i], eol)
		}
		out = slices.Replace(out, h.b0+shift, h.b1+shift, back...)
	}
	return JoinLines(out, eol)
}

// SplitLines cuts after each line break.
func SplitLines(b []byte) [][]byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// JoinLines ends every line but the last: the former last line may be further up now.
func JoinLines(lines [][]byte, eol string) []byte {
	for i, l := range lines {
		if i < len(lines)-1 && !bytes.HasSuffix(l, []byte("\n")) {
			if eol == "" {
				eol = "\n"
			}
			lines[i] = append(slices.Clip(l), eol...)
		}
	}
	return bytes.Join(lines, nil)
}

// eolOf is what all lines end in, "" when they differ or there are none.
func eolOf(b []byte) string {
	switch all, crlf := bytes.Count(b, []byte("\n")), bytes.Count(b, []byte("\r\n")); {
	case all == 0:
		return ""
	case crlf == 0:
		return "\n"
	case crlf == all:
		return "\r\n"
	}
	return ""
}

func withEOL(line []byte, eol string) []byte {
	text, broken := bytes.CutSuffix(line, []byte("\n"))
	if eol == "" || !broken {
		return line
	}
	return append(slices.Clip(bytes.TrimSuffix(text, []byte("\r"))), eol...)
}

func sameLine(a, b []byte) bool {
	return bytes.Equal(bytes.TrimRight(a, "\r\n"), bytes.TrimRight(b, "\r\n"))
}

// maxEdits bounds the search for a diff; beyond it the file was rewritten, and its lines say nothing.
const maxEdits = 1000

// DiffLines is the greedy algorithm of Myers, "An O(ND) Difference Algorithm and Its Variations" (1986).
func DiffLines(a, b [][]byte) []lineHunk {
	skip := 0
	for skip < len(a) && skip < len(b) && sameLine(a[skip], b[skip]) {
		skip++
	}
	tail := 0
	for tail < len(a)-skip && tail < len(b)-skip && sameLine(a[len(a)-1-tail], b[len(b)-1-tail]) {
		tail++
	}
	x, y := a[skip:len(a)-tail], b[skip:len(b)-tail]
	if len(x) == 0 && len(y) == 0 {
		return nil
	}
	var trace [][]int
	ok := len(x) > 0 && len(y) > 0 && max(len(x), len(y))-min(len(x), len(y)) <= maxEdits // else the search is known to say no, or nothing
	if ok {
		trace, ok = myers(x, y)
	}
	if !ok {
		return []lineHunk{{skip, skip + len(x), skip, skip + len(y)}}
	}
	return hunks(trace, len(x), len(y), skip)
}

// myers returns how far each diagonal reached for each number of edits.
func myers(a, b [][]byte) ([][]int, bool) {
	var trace [][]int
	v := []int{0} // for 0 edits: diagonal 0; for d edits: diagonals -d, -d+2, … d
	for d := 0; d <= maxEdits; d++ {
		next := make([]int, d+1)
		for i := range next {
			k := 2*i - d
			x := 0
			switch {
			case d == 0:
			case i == 0 || i < d && v[i-1] < v[i]:
				x = v[i]
			default:
				x = v[i-1] + 1
			}
			for x < len(a) && x-k < len(b) && sameLine(a[x], b[x-k]) {
				x++
			}
			next[i] = x
			if x >= len(a) && x-k >= len(b) {
				return append(trace, next), true
			}
		}
		trace = append(trace, next)
		v = next
	}
	return nil, false
}

// hunks walks the trace back and gathers neighbouring edits.
func hunks(trace [][]int, x, y, skip int) []lineHunk {
	var out []lineHunk
	for d := len(trace) - 1; d > 0; d-- {
		v := trace[d-1]
		i := (x - y + d) / 2
		down := i == 0 || i < d && v[i-1] < v[i] // a line of b came in, else one of a went
		var px, py int
		if down {
			px = v[i]
			py = px - (x - y + 1)
		} else {
			px = v[i-1]
			py = px - (x - y - 1)
		}
		ex, ey := px, py
		if down {
			ey++
		} else {
			ex++
		}
		h := lineHunk{skip + px, skip + ex, skip + py, skip + ey}
		if n := len(out); n > 0 && out[n-1].a0 == h.a1 && out[n-1].b0 == h.b1 {
			out[n-1].a0, out[n-1].b0 = h.a0, h.b0
		} else {
			out = append(out, h)
		}
		x, y = px, py
	}
	slices.Reverse(out)
	return out
}
