// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestTakeOutToTheByte: what is left of a file that gpuadm edited, and another process too, is the
// file with the edit of the other process alone. The files, gpuadm's edits and those of the other
// process are random; the other one edits lines of the file, and comments and blank lines anywhere.
func TestTakeOutToTheByte(t *testing.T) {
	many := uint64(3000)
	if os.Getenv("LAB_ALL") != "" {
		many = 200_000
	}

	exact := 0
	for seed := range many {
		random := rand.New(rand.NewPCG(seed, 59))
		before := randomFile(random)
		after, err := Edit(before, randomEdit(random))
		if err != nil || bytes.Equal(before, after) {
			continue
		}
		found, want, ok := foreignEdit(random, before, after)
		if !ok {
			continue
		}

		rest, left, err := (*Texts)(nil).TakeOut(before, after, found, Rules{})
		must.That(t, err == nil && len(left) == 0 && bytes.Equal(rest, want),
			"seed %d: %v, left %q\n--- before\n%q\n--- after\n%q\n--- found\n%q\n--- rest\n%q\n--- want\n%q",
			seed, err, left, before, after, found, rest, want)
		exact++
	}
	check.That(t, exact >= int(many)/5, "only %d of %d files were compared", exact, many)
}

// randomFile is a file of some tables and comments, with or without a line break at its end.
func randomFile(random *rand.Rand) []byte {
	var text strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	aside := func() {
		switch random.IntN(4) {
		case 0:
			add("# comment %d", random.IntN(100))
		case 1:
			add("")
		}
	}

	aside()
	for i := range random.IntN(3) {
		add("top%d = %d", i, random.IntN(9))
		aside()
	}
	for i := range random.IntN(3) {
		add("[table%d]", i)
		for k := range random.IntN(4) {
			aside()
			add("  key%d = %d", k, random.IntN(9))
		}
		aside()
	}

	data := []byte(text.String())
	if random.IntN(3) == 0 {
		data = bytes.TrimRight(data, "\n")
	}
	if random.IntN(5) == 0 {
		data = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
	}
	return data
}

// randomEdit sets, changes and removes keys.
func randomEdit(random *rand.Rand) (ops []Op) {
	all := []Op{
		Set([]string{"top0"}, int64(77)),
		Set([]string{"mine"}, true),
		Set([]string{"table0", "key1"}, "changed"),
		Set([]string{"table0", "mine"}, "added"),
		Set([]string{"table1", "new", "mine"}, []any{"a", "b"}),
		Set([]string{"fresh"}, Table{{"a", int64(1)}, {"sub", Table{{"b", "x"}}}}),
		Unset([]string{"table0", "key0"}),
	}
	for _, op := range all {
		if random.IntN(3) == 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

// foreignEdit makes the same edit in the file that gpuadm left and in the one before gpuadm's edit.
// ok is false where the edit is not defined in both: it is made next to a line that both have.
func foreignEdit(random *rand.Rand, before, after []byte) (found, want []byte, ok bool) {
	foundLines := linesOf(after)
	wantLines := linesOf(before)
	kept, _ := matches(wantLines, foundLines)
	if len(foundLines) == 0 {
		return nil, nil, false
	}

	for n := range 1 + random.IntN(3) {
		at := random.IntN(len(foundLines))
		origin := kept[at]
		comment := line{fmt.Sprintf("# foreign %d", n), foundLines[0].end}
		if at == 0 && origin < 0 { // above what gpuadm wrote at the top
			origin = 0
		}
		isLast := at == len(foundLines)-1 || origin == len(wantLines)-1
		switch {
		case origin < 0 || isLast || foundLines[at].end == "":
			return nil, nil, false
		case at == 0 && kept[0] < 0:
		case random.IntN(2) == 0: // above the line
		default: // below it: gpuadm's lines may follow in one of the files, and the comment is above them
			at++
			origin++
		}
		gap := at == 0 && origin > 0 || at > 0 && kept[at-1] >= 0 && kept[at] >= 0 && kept[at] != kept[at-1]+1
		if gap { // gpuadm removed a line here: the comment may be above or below it
			return nil, nil, false
		}
		foundLines = insertLine(foundLines, at, comment)
		wantLines = insertLine(wantLines, origin, comment)
		kept = insertOrigin(kept, at, origin)
	}

	found = joinEach(foundLines)
	want = joinEach(wantLines)
	endsOpen := !bytes.HasSuffix(found, []byte("\n")) && !bytes.HasSuffix(want, []byte("\n"))
	switch {
	case endsOpen && random.IntN(2) == 0: // with a line break at the end
		found = append(found, foundLines[0].end...)
		want = append(want, foundLines[0].end...)
	case foundLines[len(foundLines)-1].isBlank() || wantLines[len(wantLines)-1].isBlank():
	case random.IntN(4) == 0: // without it
		found = bytes.TrimSuffix(bytes.TrimSuffix(found, []byte("\n")), []byte("\r"))
		want = bytes.TrimSuffix(bytes.TrimSuffix(want, []byte("\n")), []byte("\r"))
	}
	if random.IntN(4) == 0 { // converted as a whole
		found = bytes.ReplaceAll(bytes.ReplaceAll(found, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
		want = bytes.ReplaceAll(bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	}
	return found, want, true
}

func insertLine(lines []line, at int, l line) []line {
	return append(lines[:at:at], append([]line{l}, lines[at:]...)...)
}

// insertOrigin notes that a line is in both files.
func insertOrigin(kept []int, at, origin int) []int {
	out := append(kept[:at:at], append([]int{origin}, kept[at:]...)...)
	for i := range out {
		if i != at && out[i] >= origin {
			out[i]++
		}
	}
	return out
}

func joinEach(lines []line) []byte {
	var out bytes.Buffer
	for _, l := range lines {
		out.WriteString(l.text + l.end)
	}
	return out.Bytes()
}
