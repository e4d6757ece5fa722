// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestWritten: a spec of several files is written as one file, which is read as the same spec, and
// has nothing else of the files.
func TestWritten(t *testing.T) {
	const (
		licence = "format = 1\n[driver.grid]\nfeature_type = 4\ntoken_file = \"/etc/l/a.tok\"\n"
		first   = "format = 1\n[driver]\nparameters = { NVreg_A = 1, NVreg_B = 2 }\n"
		labels  = "[node]\nlabels = { a = \"1\", b = \"\" }\ntaints = [\"x:NoSchedule\"]\n"
		second  = "[driver]\nparameters = { NVreg_A = \"\" } # my-comment\n"
		third   = "[node]\nlabels = { \"a-\" = \"\" }\ntaints = [\"x-\", \"y=z:NoExecute\"]\n"
	)
	oneGPU := strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1)
	for name, files := range map[string][]spec.File{
		"every key":        {node(oneGPU)},
		"the example":      {node(example)},
		"an empty section": {node("format = 1\n[runtime]\n")},
		"a stated default": {node("format = 1\n[runtime]\ncdi = true\n")},
		"a licence":        {node(licence)},
		"several files":    {node(first + labels), part(10, second+third)},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, files...)
			again := parse(t, node(string(s.TOML())))
			same := reflect.DeepEqual(again, s) && again.Digest() == s.Digest()
			check.That(t, same, "%+v is written as\n%s\nwhich is read as %+v", s, s.TOML(), again)
			check.That(t, !strings.Contains(string(s.TOML()), "my-comment"), "a comment is in it:\n%s", s.TOML())
		})
	}
}

// TestWrittenFollowing: the layout that the node's label has named is not part of the spec.
func TestWrittenFollowing(t *testing.T) {
	s := parse(t, node("format = 1\n[node]\n[mig]\nfile = \"/l\"\nfollow_label = true\n"))
	wanted := s.Digest()
	s.MIG.Layout = "all-1g.10gb"
	check.Equal(t, parse(t, node(string(s.TOML()))).Digest(), wanted, "the spec")
}
