// SPDX-License-Identifier: Apache-2.0

// Package pages reads the command lines of our pages, which tests run or hold against what the
// programs know. Its own tests hold what README and the examples say against the source.
package pages

import (
	"fmt"
	"regexp"
	"strings"
)

// A Line is a command line of a page.
type Line struct {
	// At is the page and the number of the line.
	At string
	// Text is what a person types, its continuations joined.
	Text string
	// Input is its here-document.
	Input string
}

var hereDocument = regexp.MustCompile(`<<'?(\w+)'?$`)

// Lines are the command lines of a page: each line of a fenced block without a language, and of a
// block that four spaces indent.
func Lines(page, text string) (all []Line) {
	fence, commands := false, false
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if language, is := strings.CutPrefix(lines[i], "```"); is {
			fence, commands = !fence, !fence && language == ""
			continue
		}
		line, indented := strings.CutPrefix(lines[i], "    ")
		if !commands && (fence || !indented || lines[i-1] != "" && !strings.HasPrefix(lines[i-1], "    ")) {
			continue
		}
		l := Line{At: fmt.Sprintf("%s:%d", page, i+1), Text: line}
		for strings.HasSuffix(l.Text, `\`) && i+1 < len(lines) {
			i++
			l.Text = strings.TrimSuffix(l.Text, `\`) + strings.TrimSpace(lines[i])
		}

		if m := hereDocument.FindStringSubmatch(l.Text); m != nil {
			for i++; i < len(lines) && lines[i] != m[1]; i++ {
				l.Input += lines[i] + "\n"
			}
		}

		if strings.TrimSpace(l.Text) != "" {
			all = append(all, l)
		}
	}

	return all
}

// operators end a command, and begin another or a redirection.
var operators = regexp.MustCompile(`^(?:\|\||&&|>>|<<|[|;&<>])`)

// Commands takes the line apart as a shell does: the words of each simple command, without comments
// and redirections.
func (l Line) Commands() (all [][]string) {
	var words []string
	word, in, redirected := strings.Builder{}, false, false
	end := func() {
		if in && !redirected {
			words = append(words, word.String())
		}
		redirected = redirected && !in
		word.Reset()
		in = false
	}

	for text := l.Text; text != ""; {
		switch c := text[0]; {
		case c == '\'' || c == '"':
			quoted, rest, _ := strings.Cut(text[1:], string(c))
			word.WriteString(quoted)
			in, text = true, rest
		case strings.HasPrefix(text, "$("):
			inner, rest, _ := strings.Cut(text, ")")
			word.WriteString(inner + ")")
			in, text = true, rest
		case c == '#' && !in:
			text = ""
		case c == ' ':
			end()
			text = text[1:]
		case operators.MatchString(text):
			end()
			operator := operators.FindString(text)
			redirected = strings.ContainsAny(operator, "<>")
			if !redirected {
				all, words = append(all, words), nil
			}
			text = text[len(operator):]
		default:
			word.WriteByte(c)
			in, text = true, text[1:]
		}
	}

	if end(); len(words) > 0 {
		all = append(all, words)
	}
	return all
}
