// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestLabHostFrozen: a process that runc left frozen ends with its host.
func TestLabHostFrozen(t *testing.T) {
	t.Parallel()
	Asked(t)
	g, err := newCgroups("gpuadm-lab-frozen-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	top, file, frozen := g.First["freezer"], "freezer.state", "FROZEN"
	if top == "" {
		top, file, frozen = g.Unified, "cgroup.freeze", "1"
	}
	group := filepath.Join(top, "container")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	for _, file := range [][2]string{{"cgroup.procs", strconv.Itoa(sleep.Process.Pid)}, {file, frozen}} {
		if err := os.WriteFile(filepath.Join(group, file[0]), []byte(file[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.kill(); err != nil {
		t.Error(err)
	}
	_ = sleep.Wait()
	if err := g.remove(); err != nil {
		t.Error(err)
	}
}
