// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabHostFrozen: a process that runc left frozen ends with its host.
func TestLabHostFrozen(t *testing.T) {
	t.Parallel()
	Asked(t)
	g := must.Get(newCgroups("gpuadm-lab-frozen-" + strconv.Itoa(os.Getpid())))(t)
	top, file, frozen := g.First["freezer"], "freezer.state", "FROZEN"
	if top == "" {
		top, file, frozen = g.Unified, "cgroup.freeze", "1"
	}
	group := filepath.Join(top, "container")
	must.OK(t, os.Mkdir(group, 0o755))
	sleep := exec.Command("sleep", "600")
	must.OK(t, sleep.Start())
	for _, file := range [][2]string{{"cgroup.procs", strconv.Itoa(sleep.Process.Pid)}, {file, frozen}} {
		must.OK(t, os.WriteFile(filepath.Join(group, file[0]), []byte(file[1]), 0))
	}
	if err := g.kill(); err != nil {
		t.Error(err)
	}
	_ = sleep.Wait()
	if err := g.remove(); err != nil {
		t.Error(err)
	}
}
