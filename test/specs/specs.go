// SPDX-License-Identifier: Apache-2.0

// Package specs makes a spec of the text of its sections.
package specs

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// Of reads the sections of a node.toml.
func Of(t testing.TB, sections string) spec.Spec {
	t.Helper()
	file := spec.File{Name: "node.toml", Data: []byte("format = 1\n" + sections)}
	return must.Get(spec.Parse(file))(t)
}
