// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
)

// FormDeclared is the form of other tools' files about sources, in which gpuadm disables what its own files declare, too: of two keys for
// one repository apt refuses to read any list, and dnf takes the packages by whichever it likes.
const FormDeclared = "declared"

// The marks begin lines that were others': one that is disabled, and one that the next line is in the place of. apt and dnf know such
// comments in the midst of an entry: sources.list(5), dnf.conf(5).
const (
	disabledMark = "# gpuadm disabled:"
	replacedMark = "# gpuadm replaced:"
)

// Disabled is a line as a comment.
func Disabled(line string) string { return disabledMark + " " + line }

// Instead is a line in the place of another, or of none.
func Instead(line, of string) string {
	return replacedMark + " " + strings.TrimSuffix(of, "\n") + "\n" + line + "\n"
}

// Declared wants others' declarations of the repositories disabled: gpuadm's own name the key by its fingerprint.
func (r *Reading) Declared(packager string, repos []Repository, sys System) (wants []converge.Want) {
	p := r.named(packager)
	repos = slices.DeleteFunc(slices.Clone(repos), func(r Repository) bool { return r.URL == "" })
	if p == nil || len(repos) == 0 {
		return nil
	}
	for _, file := range slices.Concat([]string{"/etc/apt/sources.list"}, FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources"), FilesIn(sys, "/etc/yum.repos.d", ".repo")) {
		edit := func(data []byte) ([]byte, error) {
			if data == nil {
				return nil, nil
			}
			return p.Disable(file, EnabledAgain(data), repos, sys), nil
		}
		if out, _ := edit(sys.Files[file]); bytes.Equal(out, EnabledAgain(sys.Files[file])) {
			continue
		}
		w := things.Edited(NewDeclared(file), edit, "gpuadm's own file declares the same repository, and its key by fingerprint")
		wants = append(wants, w)
	}
	return wants
}

// NewDeclared builds such a file again.
func NewDeclared(name string) *things.FileThing {
	return things.NewFile(name, enableIn).Formed(FormDeclared)
}

// enableIn takes gpuadm's marks out of a file, whatever else was changed in it since.
func enableIn(_, _, found []byte) (rest []byte, left []string, err error) {
	if found == nil {
		return nil, nil, errors.New("internal error: a file that is not there has no marks")
	}
	return EnabledAgain(found), nil, nil
}

// EnabledAgain is a file without gpuadm's marks.
func EnabledAgain(data []byte) []byte {
	var out []byte
	skip := false
	for line := range strings.Lines(string(data)) {
		was, replaced := strings.CutPrefix(line, replacedMark)
		is, disabled := strings.CutPrefix(line, disabledMark)
		switch {
		case replaced:
			if strings.TrimSpace(was) != "" {
				out = append(out, strings.TrimPrefix(was, " ")...)
			}
		case disabled:
			out = append(out, strings.TrimPrefix(is, " ")...)
		case !skip:
			out = append(out, line...)
		}
		skip = replaced
	}
	return out
}
