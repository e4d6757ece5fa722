// SPDX-License-Identifier: Apache-2.0

package main

// Output:
//   - stdout has the answer, stderr the progress and the errors. A script can pipe the first and
//     drop the second.
//   - Text is rendered from the same structs that -o json prints, so the two cannot differ.
//   - A sign has the meaning; colour only highlights it.
//   - The last sentence says what is interrupted and what to type next.
//   - No line repeats another, and no word is in capitals.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
)

// show prints an answer: with -o json as one JSON object on one line, else as text made from the
// same value.
func show[T any](c *common, answer T, text func(T)) error {
	if c.output == "json" {
		return printJSON(c.stdout, answer)
	}
	text(answer)
	return nil
}

// printJSON prints a value as JSON on one line. It masks secrets, and escapes characters that a
// terminal may interpret, such as U+009B.
func printJSON(w io.Writer, v any) error {
	all, err := encoded(v)
	if err != nil {
		return err
	}

	all = jsonString().ReplaceAllFunc(all, func(quoted []byte) []byte {
		return safeString(w, quoted)
	})
	var out []byte
	for _, r := range string(all) {
		switch {
		case string(r) == glue:
			out = append(out, ' ')
		case strconv.IsPrint(r) || r == '\n':
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}

	_, err = w.Write(out)
	return err
}

// safeString masks the secrets of a JSON string, and has commands as the reader of w types them.
func safeString(w io.Writer, quoted []byte) []byte {
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return quoted
	}
	safe := mask.Message(commandsOf(w, text))
	if safe == text {
		return quoted
	}

	quoted, _ = encoded(safe) // a text can always be encoded
	return bytes.TrimSuffix(quoted, []byte("\n"))
}

// rows prints lines with a label before the first.
func rows(w io.Writer, indent, width int, label string, lines ...string) {
	mayBeTyped := label == "try" || label == "type"
	for _, line := range lines {
		var text any = line
		if mayBeTyped {
			text = toType(line)
		}
		printf(w, "%*s%-*s %s\n", indent, "", width, label, text)
		label = ""
	}
}

// toType is a line that says what to do: one with an option, a pipe or a second command may be a
// command, which stays whole.
func toType(line string) any {
	for _, sign := range []string{" -", " | ", "&&", "$("} {
		if strings.Contains(line, sign) {
			return whole(line)
		}
	}
	return line
}

// notes prints remarks that need no action.
func (c *common) notes(lines []string) {
	for _, n := range lines {
		printf(c.stdout, "Note: %s.\n", n)
	}
}

// encoded returns a value as JSON on one line.
func encoded(v any) ([]byte, error) {
	var all bytes.Buffer
	enc := json.NewEncoder(&all)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return all.Bytes(), err
}

var jsonString = pattern.Of(`"(?:[^"\\]|\\.)*"`)

// colour wraps a sign for a terminal.
func (c *common) colour(w io.Writer, sign string) verbatim {
	code := colourOf(sign)
	if code == "" || c.noColor || c.getenv("NO_COLOR") != "" || !c.tty(w) {
		return verbatim(sign)
	}
	return verbatim("\x1b[" + code + "m" + sign + "\x1b[0m")
}

// colourOf returns the terminal's code for the colour of a sign; "" for a sign that has none.
// Source: ECMA-48, Select Graphic Rendition.
func colourOf(sign string) string {
	switch sign {
	case "+":
		return "32" // green
	case "~":
		return "33" // yellow
	case "-":
		return "31" // red
	case "?":
		return "36" // cyan
	case "x":
		return "35" // magenta
	case "!":
		return "31;1" // red and bold
	}
	return ""
}

// sign returns the sign of a change's kind.
func sign(ch converge.Line) string {
	switch {
	case ch.Cannot != "":
		return "!"
	case ch.Unknown != "":
		return "x"
	case ch.Deferred != "":
		return "?"
	case ch.Before == "":
		return "+"
	case ch.After == "":
		return "-"
	}
	return "~"
}

var digestWord = pattern.Of(`\b([0-9a-f]{12})[0-9a-f]{52}\b`)

// states returns a change's two states, with short digests. A follower has only one desired state,
// so the state found is enough: "its configuration changed since it started".
func states(ch converge.Line) string {
	if ch.Follows && ch.Before != "" {
		return short(ch.Before)
	}
	return short(ch.Before) + " → " + short(ch.After)
}

func short(s converge.State) string {
	if s == "" {
		return "absent"
	}
	return digestWord().ReplaceAllString(string(s), "$1…")
}

// attributes returns the changes of mode and owner, which the diff does not show.
func attributes(ch converge.Line) string {
	before := things.FileAttributes(ch.Before)
	after := things.FileAttributes(ch.After)
	known := before != "" && after != ""
	if ch.Diff == "" || !known || before == after {
		return ""
	}
	return before + " → " + after
}

// changeLine prints a change on one line, and below it why it cannot be made.
func (c *common) changeLine(w io.Writer, stage string, ch converge.Line) {
	state := ""
	switch {
	case ch.Cannot != "":
	case ch.Unknown != "":
		state = "   unknown"
	case ch.Deferred != "":
		state = "   " + until(ch.Deferred)
	case ch.Diff == "":
		state = "   " + states(ch)
	}

	printf(w, "  %-10s %s %s%s\n", stage, c.colour(w, sign(ch)), ch, state)
	if ch.Cannot == "" {
		return
	}
	printf(w, "%15s%s\n", "", ch.Cannot)
	for _, b := range ch.Because {
		printf(w, "%15sbecause: %s\n", "", b)
	}
	for _, t := range ch.Try {
		printf(w, "%15stry: %s\n", "", toType(t))
	}
}

// until names the event to which a change is deferred: "first boot", "the driver answers".
func until(event string) string {
	return "deferred until " + strings.TrimPrefix(event, "once ")
}

// changeText prints one change, its reason and its diff.
func (c *common) changeText(w io.Writer, stage string, ch converge.Line) {
	c.changeLine(w, stage, ch)
	if ch.Cannot != "" || ch.Deferred != "" || ch.Unknown != "" {
		return
	}

	const below = "%15s%s\n"
	attributes := attributes(ch)
	if attributes != "" {
		printf(w, below, "", attributes)
	}
	if ch.Why != "" {
		printf(w, below, "", ch.Why)
	}
	if ch.Lost != "" {
		printf(w, below, "", "undo will refuse it: "+ch.Lost)
	}

	c.signedLines(w, ch.Diff)
	c.signedLines(w, ch.Drawing)
}

// signedLines prints lines below a change, and colours a first + or -.
func (c *common) signedLines(w io.Writer, lines string) {
	for line := range strings.SplitSeq(strings.TrimSuffix(lines, "\n"), "\n") {
		if line == "" {
			continue
		}
		var mark verbatim
		if line[0] == '+' || line[0] == '-' {
			mark = c.colour(w, line[:1])
			line = line[1:]
		}
		printf(w, "%15s%s%s\n", "", mark, whole(strings.TrimRight(line, " \r")))
	}
}

// typed returns the command line of a verb for the same machine, spec and stages.
func (c *common) typed(verb string) string {
	switch {
	case verb == "apply" && c.bakes:
		verb = "bake"
	case verb == "apply" && c.repairs:
		verb = "repair"
	}

	if firstWord(verb) == "undo" {
		return c.command(verb)
	}
	return c.command(verb, c.chosen...)
}

// command returns a command line for the same machine and spec. The verb is already shell text;
// command quotes the other words.
func (c *common) command(verb string, more ...string) string {
	readsNoSpec := slices.Contains([]string{"undo", "facts", "init", "bundle"}, firstWord(verb))
	if !readsNoSpec {
		for _, f := range slices.Backward(c.files) {
			more = append([]string{"-f", f}, more...)
		}
	}

	line := "sudo " + c.typedName() + " " + verb
	if c.rootDir != "/" {
		line = c.typedName() + " " + verb
		more = append([]string{"--root", c.rootDir}, more...)
	}
	for _, w := range more {
		line += " " + host.ShellWord(w)
	}

	if c.told != nil {
		c.told(line)
	}
	return strings.ReplaceAll(line, " ", glue)
}

// typedName returns the word by which an operator runs this program.
func (e env) typedName() string { return host.ShellWord(cmp.Or(e.typedAs, "gpuadm")) }

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// again returns the current command line, for root.
func (e env) again() string {
	words := []string{"sudo", e.typedName()}
	for _, w := range e.args {
		words = append(words, host.ShellWord(w))
	}
	return strings.Join(words, glue)
}

// stays prints a change that an undo does not revert, and why.
func stays(w io.Writer, stage string, ch converge.Line, word, why string) {
	printf(w, "  %-10s = %s   %s: %s\n", stage, ch, word, why)
}
