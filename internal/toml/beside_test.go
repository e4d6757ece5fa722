// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestTakeOutBeside: another process edits the file that gpuadm left, anywhere: lines above, between and
// below gpuadm's own, and comments behind values, also behind gpuadm's. All that it wrote is there
// after the take-out, in its order. Without it the rest is, to the byte, the file before gpuadm's edit.
func TestTakeOutBeside(t *testing.T) {
	many := uint64(5000)
	if os.Getenv("LAB_ALL") != "" {
		many = 300_000
	}

	tried := 0
	for seed := range many {
		random := rand.New(rand.NewPCG(seed, 60))
		before := randomFile(random)
		after, err := Edit(before, randomEdit(random))
		if err != nil || bytes.Equal(before, after) {
			continue
		}
		other := anotherProcess{random: random}
		found := other.edits(after)
		if _, err := Values(found); err != nil {
			continue
		}

		rest, left, err := (*Texts)(nil).TakeOut(before, after, found, Rules{})
		shown := fmt.Sprintf("seed %d: %v, left %q\n--- before\n%q\n--- after\n%q\n--- found\n%q\n--- rest\n%q",
			seed, err, left, before, after, found, rest)
		must.That(t, err == nil && len(left) == 0, "%s", shown)
		must.That(t, slices.Equal(other.wrote(rest), other.wrote(found)), "%s\n--- lost or moved: %q", shown, other.wrote(found))
		want := other.converts(before)
		erased := other.erased(rest)
		if other.wroteLast(rest) { // its line needs a line break above it
			want = bytes.TrimRight(want, "\r\n")
			erased = bytes.TrimRight(erased, "\r\n")
		}
		must.That(t, bytes.Equal(erased, want), "%s\n--- erased\n%q\n--- want\n%q", shown, erased, want)
		tried++
	}

	check.That(t, tried >= int(many)/2, "only %d of %d files were compared", tried, many)
}

// anotherProcess edits a file so that its texts can be told from all others.
type anotherProcess struct {
	random    *rand.Rand
	converted bool   // it has given all lines other line breaks
	opened    bool   // it has removed the line break at the end
	closed    string // the one that it has added there
}

// foreign is what it writes: a line of its own, or a comment behind another line's text.
var (
	foreignLine   = regexp.MustCompile(`(?m)^[ \t]*# foreign \d+\r?(\n|\z)`)
	foreignBehind = regexp.MustCompile(`  # foreign \d+`)
	foreignText   = regexp.MustCompile(`# foreign \d+`)
)

func (o *anotherProcess) edits(after []byte) []byte {
	lines := slices.Collect(strings.Lines(string(after)))
	if len(lines) == 0 {
		return after
	}
	for n := range 1 + o.random.IntN(3) {
		at := o.random.IntN(len(lines))
		text := fmt.Sprintf("# foreign %d", n)
		written, end := cutBreak(lines[at])
		switch o.random.IntN(3) {
		case 0:
			lines = slices.Insert(lines, at, text+cmp.Or(end, breakOf(after)))
		case 1:
			if end != "" {
				lines = slices.Insert(lines, at+1, strings.Repeat(" ", o.random.IntN(3))+text+end)
			}
		case 2:
			if !isBlank(written) && !strings.Contains(written, "#") {
				lines[at] = written + "  " + text + end
			}
		}
	}

	found := []byte(strings.Join(lines, ""))
	if o.random.IntN(5) == 0 && !bytes.Contains(found, []byte("\r")) {
		o.converted = true
		found = bytes.ReplaceAll(found, []byte("\n"), []byte("\r\n"))
	}
	last := lastLine(found)
	switch {
	case o.random.IntN(5) > 0 || isBlank(last):
	case strings.HasSuffix(last, "\n") && o.converted: // no line may be left that shows the conversion
	case strings.HasSuffix(last, "\n"):
		o.opened = true
		found = withoutBreak(found)
	default:
		o.closed = breakOf(found)
		found = append(found, o.closed...)
	}

	return found
}

// withoutBreak is a file without the line break at its end.
func withoutBreak(file []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(file, []byte("\n")), []byte("\r"))
}

// breakOf is the line break of a file.
func breakOf(file []byte) string {
	if bytes.Contains(file, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// cutBreak is a line's text, and its line break.
func cutBreak(line string) (text, end string) {
	text = strings.TrimRight(line, "\r\n")
	return text, line[len(text):]
}

func isBlank(text string) bool { return strings.TrimSpace(text) == "" }

// wrote is what it wrote into a file, in the order of the file.
func (o *anotherProcess) wrote(file []byte) (texts []string) {
	for _, m := range foreignText.FindAll(file, -1) {
		texts = append(texts, string(m))
	}
	return texts
}

// erased is a file without what it wrote.
func (o *anotherProcess) erased(file []byte) []byte {
	return foreignBehind.ReplaceAll(foreignLine.ReplaceAll(file, nil), nil)
}

// converts returns a file with the line breaks that it has given the file.
func (o *anotherProcess) converts(file []byte) []byte {
	if o.converted {
		file = bytes.ReplaceAll(file, []byte("\n"), []byte("\r\n"))
	}
	switch {
	case o.opened:
		return withoutBreak(file)
	case o.closed != "":
		return append(slices.Clone(file), o.closed...)
	}

	return file
}

// wroteLast reports whether it has written the last line of a file.
func (o *anotherProcess) wroteLast(file []byte) bool {
	return strings.HasPrefix(strings.TrimSpace(lastLine(file)), "# foreign")
}

// lastLine is the last line of a file with its line break.
func lastLine(file []byte) string {
	last := ""
	for line := range strings.Lines(string(file)) {
		last = line
	}
	return last
}

// TestTakeOutLosesNothing: another process does with the file that gpuadm left whatever it likes. All
// that it wrote is in what is left of the file: comments, keys and values.
func TestTakeOutLosesNothing(t *testing.T) {
	many := uint64(5000)
	if os.Getenv("LAB_ALL") != "" {
		many = 300_000
	}

	tried := 0
	for seed := range many {
		random := rand.New(rand.NewPCG(seed, 61))
		before := randomFile(random)
		after, err := Edit(before, randomEdit(random))
		if err != nil || bytes.Equal(before, after) {
			continue
		}
		found := rewritten(random, after)
		if _, err := Values(found); err != nil {
			continue
		}

		rest, left, err := (*Texts)(nil).TakeOut(before, after, found, Rules{})
		shown := fmt.Sprintf("seed %d: %v, left %q\n--- before\n%q\n--- after\n%q\n--- found\n%q\n--- rest\n%q",
			seed, err, left, before, after, found, rest)
		must.That(t, err == nil, "%s", shown)
		for _, text := range foreignWord.FindAll(found, -1) {
			must.That(t, bytes.Contains(rest, text), "%s\n--- lost: %q", shown, text)
		}
		text, end := cutBreak(lastLine(rest))
		textBefore, endBefore := cutBreak(lastLine(before))
		sameEnd := lastLine(found) == lastLine(after) && text == textBefore && !isBlank(text)
		must.That(t, !sameEnd || (end == "") == (endBefore == ""), "%s\n--- another end", shown)
		tried++
	}

	check.That(t, tried >= int(many)/3, "only %d of %d files were compared", tried, many)
}

// foreignWord is what rewritten writes, each with a number of its own.
var foreignWord = regexp.MustCompile(`foreign\d+|99\d+`)

// rewritten is a file in which another process has written comments, keys and values, and removed and
// moved lines.
func rewritten(random *rand.Rand, after []byte) []byte {
	lines := slices.Collect(strings.Lines(string(after)))
	for n := range 1 + random.IntN(4) {
		if len(lines) == 0 {
			break
		}
		at := random.IntN(len(lines))
		text, end := cutBreak(lines[at])
		end = cmp.Or(end, "\n")
		key, _, isKey := strings.Cut(text, "=")
		switch random.IntN(7) {
		case 0:
			lines = slices.Insert(lines, at, fmt.Sprintf("  # foreign%d", n)+end)
		case 1:
			lines[at] = text + fmt.Sprintf(" # foreign%d", n) + end
		case 2:
			lines = slices.Insert(lines, at, fmt.Sprintf("foreign%d = 1", n)+end)
		case 3:
			if isKey {
				lines[at] = fmt.Sprintf("%s= 99%d", key, n) + end
			}
		case 4:
			lines = slices.Delete(lines, at, at+1)
		case 5:
			lines = slices.Delete(lines, at, at+1)
			lines = slices.Insert(lines, random.IntN(len(lines)+1), text+end)
		case 6:
			lines[at] = strings.ReplaceAll(lines[at], `["a", `, fmt.Sprintf("[ # foreign%d\n \"a\", ", n))
		}
	}

	return []byte(strings.Join(lines, ""))
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
