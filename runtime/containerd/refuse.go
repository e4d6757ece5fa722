// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Refused is why a configuration cannot be edited: the code of the error.
type Refused = trouble.Code

const (
	RefusedDisabled Refused = engine.NoCRI
	RefusedNames    Refused = "plugin-names"
	RefusedTemplate Refused = "template"
	RefusedSyntax   Refused = "invalid-toml"
	RefusedVersion  Refused = "version"
	RefusedShape    Refused = "structure"
	RefusedSize     Refused = "too-large"
	RefusedStart    Refused = "does-not-start"
)

// refuse says why a file cannot be edited. line is 0 if the reason has no single place.
func refuse(code Refused, file string, line int, reason, fix string) error {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: %s", file, reason),
		Try:  []string{fix},
		Err:  code,
	}
}

// refuse says why the file cannot be edited, and names the line of the key at path.
func (f configFile) refuse(code Refused, path []string, reason, fix string) error {
	line := 0
	doc, err := toml.Parse(f.data)
	if err == nil && len(path) > 0 {
		line = doc.LineOf(path)
	}
	return refuse(code, f.path, line, reason, fix)
}
