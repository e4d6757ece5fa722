// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/lines"
	"github.com/gpuadm/gpuadm/internal/things"
)

// FormDeclared is the form of other tools' files about sources, in which gpuadm disables the
// repositories that its own files declare: with two keys for one repository apt refuses to read any
// list, and dnf may use either entry.
const FormDeclared = "declared"

// The marks begin lines of other tools: a disabled line, and a line that the next line replaces.
// apt and dnf allow such comments within an entry: sources.list(5), dnf.conf(5).
const (
	disabledMark = "# gpuadm disabled:"
	replacedMark = "# gpuadm replaced:"
)

// Disabled returns a line as a comment.
func Disabled(line string) string { return disabledMark + " " + line }

// DisabledAll returns an entry as comments.
func DisabledAll(entry string) string {
	var out strings.Builder
	for line := range strings.Lines(entry) {
		text := strings.TrimSpace(line)
		if text != "" && text[0] != '#' {
			line = Disabled(line)
		}
		out.WriteString(line)
	}

	return out.String()
}

// Replacing returns a line that replaces another, or none.
func Replacing(old, line string) string {
	return replacedMark + " " + strings.TrimSuffix(old, "\n") + "\n" + line + "\n"
}

// Declared wants other tools' declarations of the repositories disabled: gpuadm's own name the key
// by its fingerprint.
func (r *Reading) Declared(packager string, repos []Repository, sys System) (wants []converge.Want) {
	p := r.Named(packager)
	repos = slices.DeleteFunc(slices.Clone(repos), func(r Repository) bool {
		return r.URL == ""
	})
	if p == nil || len(repos) == 0 {
		return nil
	}

	files := slices.Concat(
		[]string{"/etc/apt/sources.list", dnfConf},
		FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources"),
		FilesIn(sys, "/etc/yum.repos.d", ".repo"),
	)
	for _, file := range files {
		disable := func(data []byte) []byte {
			return p.Disable(file, EnabledAgain(data), repos, sys)
		}
		data := sys.Files[file]
		if data == nil || bytes.Equal(disable(data), EnabledAgain(data)) {
			continue
		}
		edit := func(data []byte) ([]byte, error) {
			if data == nil {
				return nil, nil
			}
			return disable(data), nil
		}

		const why = "gpuadm's own file declares the same repository, and its key by fingerprint"
		wants = append(wants, things.Edited(NewDeclared(file), edit, why))
	}

	return wants
}

// NewDeclared builds such a file, for undo.
func NewDeclared(name string) *things.FileThing {
	return things.NewFile(name, enableIn).Formed(FormDeclared)
}

// enableIn removes gpuadm's marks from a file, whatever else was changed in it since.
func enableIn(before, after, found []byte) (rest []byte, left []string, err error) {
	if found == nil {
		return nil, nil, errors.New("internal error: a file that is not there has no marks")
	}
	return lines.Ended(before, after, found, EnabledAgain(found)), nil, nil
}

// EnabledAgain returns a file without gpuadm's marks.
func EnabledAgain(data []byte) []byte {
	var out []byte
	skip := false // the line that replaces another
	for line := range strings.Lines(string(data)) {
		old, replaced := strings.CutPrefix(line, replacedMark)
		enabled, disabled := strings.CutPrefix(line, disabledMark)
		switch {
		case replaced && strings.TrimSpace(old) == "":
			// the next line replaces none
		case replaced:
			out = append(out, strings.TrimPrefix(old, " ")...)
		case disabled:
			out = append(out, strings.TrimPrefix(enabled, " ")...)
		case !skip:
			out = append(out, line...)
		}

		skip = replaced
	}

	return out
}
