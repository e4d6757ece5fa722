// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
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
