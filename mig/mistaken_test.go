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
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: mig\ndata:\n  config.yaml: |\n" +
		"    version: v1\n    mig-configs:\n      a: []\n"
	for _, tt := range []struct {
		data, what, fix string
		line            int
	}{
		{configMap, "this is a Kubernetes ConfigMap, not a file in mig-parted's format", "kubectl get configmap", 1},
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
