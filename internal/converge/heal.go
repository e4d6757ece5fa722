// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// heal passes over a last line that a power cut has torn, for good. Where there is no room for the record of that, the next run
// tries again. What else cannot be read is told each time: it keeps what undo may need from being cleared away.
func (r *run) heal() {
	if r.j.Torn > 0 {
		r.event(Event{What: Healed, Text: fmt.Sprintf("a power cut has torn line %d of %s: nothing was touched under it, and it is passed over", r.j.Torn, journalFile)})
		of := "" // the last run: a gpuadm that does not know such records would take one without a run for a run that is open
		for _, o := range r.j.Records {
			of = cmp.Or(o.Run, of)
		}
		if err := r.j.write(r.h, Record{What: tornLine, Run: of}); err == nil {
			r.j.Torn = 0
		}
	}
	if text := damage(r.h, r.j.Damaged); text != "" {
		r.event(Event{What: Remains, Text: text})
	}
}

// damage says which of the journal's lines cannot be read, and what to do about it; "" if all can.
func damage(v host.View, lines []int) string {
	if len(lines) == 0 {
		return ""
	}
	file := path.Join(v.Root(), journalFile)
	var list, cut []string
	for i := 0; i < len(lines); {
		from := lines[i]
		for i++; i < len(lines) && lines[i] == lines[i-1]+1; i++ {
		}
		if to := lines[i-1]; to > from {
			list, cut = append(list, fmt.Sprintf("%d to %d", from, to)), append(cut, fmt.Sprintf("%d,%dd", from, to))
		} else {
			list, cut = append(list, fmt.Sprint(from)), append(cut, fmt.Sprintf("%dd", from))
		}
	}
	noun, script := "line", cut[0]
	if len(lines) > 1 {
		noun = "lines"
	}
	if len(cut) > 1 {
		script = "'" + strings.Join(cut, ";") + "'"
	}
	return fmt.Sprintf("%s %s of %s cannot be read: undo does not know what was done under it, and until that is mended nothing "+
		"is cleared away that undo may need. Bring the file back from a backup, or do without: sed -i %s %s",
		noun, strings.Join(list, ", "), file, script, typed(file))
}
