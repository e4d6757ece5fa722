// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Reader does what a page says, on a machine.
type Reader struct {
	// Type types a command line, and returns what it prints.
	Type func(line Line) string
	// Edit does with a file's lines what the comment before the block says: <!-- add to NAME -->,
	// <!-- in NAME -->.
	Edit func(verb, name, text string)
}

var (
	// shownLines is the comment before an output of which a page shows the first and the last lines.
	shownLines = regexp.MustCompile(`^<!-- first (\d+), last (\d+) lines -->$`)
	edited     = regexp.MustCompile(`^<!-- (add to|in) (\S+) -->$`)
)

// Follow does what a page says, in its order, and returns the page with the output that it has now: a
// block of the language text is the output of the block of commands before it, and in a block of
// the language console each line after "$ " is a command, with its output below.
func Follow(page, text string, r Reader) string {
	var now strings.Builder
	output, comment := "", ""
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		language, is := strings.CutPrefix(lines[i], "```")
		if !is {
			comment = lines[i]
			now.WriteString(lines[i] + "\n")
			continue
		}

		begin := i + 1
		for i++; i < len(lines) && lines[i] != "```"; i++ {
		}
		block := strings.Join(lines[begin:i], "\n")
		typed := Lines(page, strings.Repeat("\n", begin-1)+"```\n"+block)
		switch language {
		case "":
			output = r.typeAll(typed)
		case "text":
			block = shown(output, comment)
		case "console":
			block = r.console(typed)
		default:
			if m := edited.FindStringSubmatch(comment); m != nil {
				r.Edit(m[1], m[2], block+"\n")
			}
		}

		fmt.Fprintf(&now, "```%s\n%s\n```\n", language, block)
	}

	return strings.TrimSuffix(now.String(), "\n")
}

func (r Reader) typeAll(lines []Line) (output string) {
	for _, l := range lines {
		output += r.Type(l)
	}
	return output
}

// console types each line after a prompt, and shows the output of each.
func (r Reader) console(lines []Line) string {
	var parts []string
	for _, l := range lines {
		typed, is := strings.CutPrefix(l.Text, "$ ")
		if is {
			l.Text = typed
			parts = append(parts, "$ "+typed+"\n"+strings.TrimSpace(r.Type(l)))
		}
	}

	return strings.Join(parts, "\n\n")
}

// shown are the lines of an output that a page shows: all of them, or those that the comment names.
func shown(output, comment string) string {
	output = strings.Trim(output, "\n")
	m := shownLines.FindStringSubmatch(comment)
	if m == nil {
		return output
	}

	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	lines := strings.Split(output, "\n")
	if first+last >= len(lines) {
		return output
	}
	left := fmt.Sprintf("  … %d more lines", len(lines)-first-last)
	kept := append(lines[:first:first], left)
	return strings.Join(append(kept, lines[len(lines)-last:]...), "\n")
}
