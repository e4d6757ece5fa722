// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestOtherFileAsLayouts: a file of another kind is named, once, and not judged key by key.
func TestOtherFileAsLayouts(t *testing.T) {
	other := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: other\ndata:\n  clients.yaml: |\n    version: v1\n"
	for _, tt := range []struct {
		data, what, fix string
		line            int
	}{
		{other, "this ConfigMap has no config.yaml", "default-mig-parted-config", 1},
		{"format = 1\n[[mig.gpu]]\n", "this is TOML, not a file in mig-parted's format", "[[mig.gpu]]", 1},
		{"<html>\n", "this is a web page (HTML)", "", 1},
		{"version: v1\nmig-configs:\n\tall: []\n", "a tab", "indent with spaces", 3},
	} {
		_, err := ParseParted("mig.yaml", []byte(tt.data))
		var faults trouble.Faults
		must.That(t, errors.As(err, &faults), "%q: %v", tt.data, err)

		check.Equal(t, len(faults), 1, "%q, faults:", tt.data)
		check.That(t, strings.Contains(faults[0].What, tt.what), "%q: %s", tt.data, faults[0].What)
		check.That(t, strings.Contains(strings.Join(faults[0].Try, "; "), tt.fix), "%q: %v", tt.data, faults[0].Try)
		check.Equal(t, faults[0].At.Line, tt.line, "%q, line:", tt.data)
	}
}

// TestConfigMapAsLayouts: the GPU Operator's ConfigMap is read where its content is. A fault has the line of
// the whole file.
func TestConfigMapAsLayouts(t *testing.T) {
	const head = "# of the GPU Operator\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: default-mig-parted-config\n" +
		"  namespace: \"FILLED BY THE OPERATOR\"\ndata:\n  config.yaml: |\n    version: v1\n    mig-configs:\n      all-disabled:\n"
	good := head + "        - devices: all\n          mig-enabled: false\n"
	c, err := ParseParted("mig.yaml", []byte(good))
	must.OK(t, err)
	isRead := len(c.Layouts) == 1 && c.Layouts[0].Name == "all-disabled" && len(c.Layouts[0].Entries) == 1
	check.That(t, isRead, "%+v", c)
	where := c.Layouts[0].Entries[0].Where
	check.That(t, strings.HasSuffix(where, ", mig.yaml:12"), "%s", where)

	_, err = ParseParted("mig.yaml", []byte(head+"        - devices: all\n          mig-enabeld: false\n"))
	var faults trouble.Faults
	must.That(t, errors.As(err, &faults) && len(faults) > 0, "%v", err)
	check.Equal(t, faults[0].At.Line, 13, "%v: the line", faults[0])
}
