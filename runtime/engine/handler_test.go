// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"1.7.24": "1 7 true", "v2.1.5": "2 1 true", "2.1.5~ds1": "2 1 true", "2.3-rc.1": "2 3 true", "1.7.24-0ubuntu1": "1 7 true",
		"": "0 0 false", "two": "0 0 false", "2": "0 0 false", "x.1": "0 0 false",
	} {
		major, minor, ok := ParseVersion(in)
		got := fmt.Sprint(major, minor, ok)
		check.That(t, (!ok || got == want) && (ok || strings.HasSuffix(want, "false")), "%q: got %s, want %s", in, got, want)
	}
}

// TestDefaultByName: "nvidia-ctk runtime configure --runtime=docker" writes "path":
// "nvidia-container-runtime", which is found along PATH.
func TestDefaultByName(t *testing.T) {
	h, wants := DefaultRuns(spec.Spec{}, facts.Facts{Programs: []string{Binary}}, Handler{
		Name:    "nvidia",
		Default: true,
	}, "nvidia-container-runtime", false)
	check.That(t, h.Default && len(wants) == 1 && wants[0].Ref().Name == Binary+" runs", "%v, %v", h, wants)
}

// TestProgramOf: the spec's program, else the toolkit's by the handler's name.
func TestProgramOf(t *testing.T) {
	for _, x := range []struct{ handler, program, want string }{
		{"auto", "", Binary},
		{"nvidia", "", Binary},
		{"nvidia-cdi", "", "/usr/bin/nvidia-container-runtime.cdi"},
		{"nvidia-legacy", "", "/usr/bin/nvidia-container-runtime.legacy"},
		{"nvidia-cdi", "/opt/x", "/opt/x"},
		{"auto", "/opt/x", "/opt/x"},
	} {
		got := PlainHandler(spec.Runtime{Handler: x.handler, Program: x.program}).Binary
		check.Equal(t, got, x.want, "%s, %s:", x.handler, x.program)
	}
}
