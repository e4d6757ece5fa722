// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRoleKnowsExits: the Ansible role does not fail where a plan was shown, whatever the plan says:
// nothing to do, changes, or a reboot.
func TestRoleKnowsExits(t *testing.T) {
	file := filepath.Join("..", "..", "images", "ansible", "roles", "gpuadm", "tasks", "plan.yml")
	text := must.Get(os.ReadFile(file))(t)
	passes := regexp.MustCompile(`failed_when: gpuadm_planned\.rc not in \[(.*)\]`).FindSubmatch(text)
	must.That(t, passes != nil, "%s does not say when the plan fails", file)
	check.Equal(t, string(passes[1]), fmt.Sprintf("0, %d, %d", exitPending, exitReboot), "the codes that pass:")
}
