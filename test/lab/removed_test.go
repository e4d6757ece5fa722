// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabHostRemoved: a host that is being removed is not taken down by another process, though each process that starts one looks for remains.
func TestLabHostRemoved(t *testing.T) {
	t.Parallel()
	Asked(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := CleanHosts(func(what string) {
					if strings.Contains(what, "removed-") {
						t.Error("another took it: " + what)
					}
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 30 {
		m := must.Get(newMachine(Options{Dist: "removed"}))(t)
		for i := range 300 {
			must.OK(t, os.Mkdir(m.path(fmt.Sprintf("upper/%d", i)), 0o755))
		}
		if err := m.Down(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	others.Wait()
}

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
