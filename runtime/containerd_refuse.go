// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// Codes of a Refusal.
const (
	RefusedDisabled = "cri-disabled"
	RefusedNames    = "plugin-names"
	RefusedTemplate = "template"
	RefusedSyntax   = "invalid-toml"
	RefusedVersion  = "version"
	RefusedShape    = "structure"
	RefusedSize     = "too-large"
)

// Refusal is why a configuration cannot be edited, and how an operator fixes it. Line is 0 when it is not one place.
type Refusal struct {
	Code, File  string
	Line        int
	Reason, Fix string
}

func (r *Refusal) Error() string {
	at := r.File
	if r.Line > 0 {
		at = fmt.Sprintf("%s:%d", r.File, r.Line)
	}
	return fmt.Sprintf("cannot edit %s: %s", at, r.Reason)
}

// refuse points at the thing at path in a file that has been read.
func (f configFile) refuse(code string, path []string, reason, fix string) *Refusal {
	r := &Refusal{Code: code, File: f.path, Reason: reason, Fix: fix}
	if d, err := toml.Parse(f.data); err == nil && len(path) > 0 {
		r.Line = d.LineOf(path)
	}
	return r
}
