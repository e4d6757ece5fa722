// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestModule wants all of Kubernetes' modules at one version: go get moves some of them alone.
func TestModule(t *testing.T) {
	version, found, err := places()
	must.OK(t, err)
	text := must.Get(os.ReadFile(filepath.Join(program{dir: "test/kube"}.moduleDir(), "go.mod")))(t)
	staging := strings.Replace(version, "v1.", "v0.", 1)
	lines := regexp.MustCompile(`(?m)^\tk8s.io/\S+ => \S+ (\S+)$`).FindAllStringSubmatch(string(text), -1)
	check.That(t, len(lines) >= 20, "only %d modules are replaced", len(lines))
	for _, line := range lines {
		if line[1] != staging {
			t.Errorf("not %s: %s", staging, line[0])
		}
	}

	for _, p := range programs() {
		check.That(t, strings.HasPrefix(filepath.Base(found[p.name]), p.name+"-"), "%s lies at %q", p.name, found[p.name])
	}
}
