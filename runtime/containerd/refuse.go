// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Refused is why a configuration cannot be edited: the cause of the error that says it to an operator.
type Refused string

const (
	RefusedDisabled Refused = "cri-disabled"
	RefusedNames    Refused = "plugin-names"
	RefusedTemplate Refused = "template"
	RefusedSyntax   Refused = "invalid-toml"
	RefusedVersion  Refused = "version"
	RefusedShape    Refused = "structure"
	RefusedSize     Refused = "too-large"
)

func (r Refused) Error() string { return string(r) }

// refuse says why a file cannot be edited. Line is 0 where it is not one place.
func refuse(code Refused, file string, line int, reason, fix string) error {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return &trouble.Error{What: fmt.Sprintf("cannot edit %s: %s", file, reason), Try: []string{fix}, Err: code}
}

// refuse points at the thing at path in a file that has been read.
func (f configFile) refuse(code Refused, path []string, reason, fix string) error {
	line := 0
	if d, err := toml.Parse(f.data); err == nil && len(path) > 0 {
		line = d.LineOf(path)
	}
	return refuse(code, f.path, line, reason, fix)
}
