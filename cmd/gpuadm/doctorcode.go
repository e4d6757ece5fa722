// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/doctor"
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
			Try:  []string{c.command("doctor") + "    names the codes of what is wrong here"},
		}}
	}
	c.entryText(all[i])
	return nil
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
		row("beside", "no root cause beside "+strings.Join(entry.By, ", "))
	}
	row("source", entry.Sources...)
	for _, xid := range entry.Xids {
		printf(w, "\n    Xid %d: %s\n", xid.Number, xid.Means)
		row("fix", xid.Action())
	}
}
