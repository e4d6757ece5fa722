// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// doctorCode prints what docs/doctor.md says of a code. It asks no machine.
func (c *common) doctorCode(code string) error {
	if c.output == "json" {
		causes := c.command("doctor -o json")
		return usage{errors.New("cannot print a code as JSON: it is text; " + causes + " has this machine's causes")}
	}
	all := doctor.Entries()
	isCode := func(e doctor.Entry) bool { return strings.EqualFold(e.Code, code) }
	i := slices.IndexFunc(all, isCode)
	if i < 0 {
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot print %s: doctor has no such code", code),
			Try: append(codesLike("doctor", code),
				c.command("doctor")+"    names the codes of what is wrong here"),
		}}
	}

	c.entryText(all[i])
	return nil
}

// codesLike are the commands with the codes that a mistyped one may mean: one letter is wrong, the
// number is not written with three digits, or it is only an area, such as DRV.
func codesLike(verb, code string) (commands []string) {
	area, number := code, ""
	if i := strings.IndexAny(code, pattern.Digits); i >= 0 {
		area = strings.TrimRight(code[:i], "-_ ")
		number = strings.TrimLeft(code[i:], "0")
	}
	meant := strings.ToUpper(area) + fmt.Sprintf("-%03s", number)

	var ofArea []string
	for _, entry := range doctor.Entries() {
		isLike := nearest.Distance(entry.Code, meant) <= 1 && number != ""
		switch {
		case entry.Code == meant:
			return []string{trouble.Command(verb + " " + entry.Code)}
		case isLike && strings.HasSuffix(entry.Code, number):
			commands = append(commands, trouble.Command(verb+" "+entry.Code))
		case number == "" && strings.HasPrefix(entry.Code, strings.ToUpper(area)+"-"):
			ofArea = append(ofArea, entry.Code)
		}
	}

	if len(ofArea) > 0 {
		return []string{trouble.Command(verb) + " CODE    with one of " + strings.Join(ofArea, ", ")}
	}
	return commands
}

// entryText prints one entry.
func (c *common) entryText(entry doctor.Entry) {
	w := c.stdout
	printf(w, "%s  %s\n", entry.Code, entry.Title)
	row := func(word string, lines ...string) { rows(w, 4, 11, word, lines...) }
	row("reads", entry.Reads)
	row("meaning", entry.Meaning)
	row("fix", entry.Fix)
	if entry.Command != "" {
		row("type", entry.Command)
	}
	row("interrupts", entry.Interrupts)
	if entry.NoRepair != "" {
		row("no repair", entry.NoRepair)
	} else {
		row("repair", c.typed("repair "+entry.Code))
	}

	if len(entry.By) > 0 {
		row("due to", "each of these, where doctor finds it too: "+strings.Join(entry.By, ", "))
	}
	row("source", entry.Sources...)
	for _, xid := range entry.Xids {
		printf(w, "\n    Xid %d: %s\n", xid.Number, xid.Means)
		row("fix", xid.Action())
	}
}
