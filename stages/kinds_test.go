// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestToolkitConfigHasForm: undo finds out how to take gpuadm's keys out of the toolkit's file.
func TestToolkitConfigHasForm(t *testing.T) {
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[toolkit]\nversion = \"1.18.0\"\nruntimes = [\"/usr/bin/crun\"]\n")}))(t)
	seen := false
	for _, w := range must.Get(toolkit.Stage.Wants(s, facts.Facts{}))(t) {
		if w.Ref().Name != toolkit.Config {
			continue
		}
		seen = true
		_, err := thingOf(nil, nil, w.Ref())
		check.That(t, err == nil && w.Ref().Form == engine.FormTOML, "form %q: %v", w.Ref().Form, err)
	}
	check.That(t, seen, "the stage does not edit the file")
}
