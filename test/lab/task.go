// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"github.com/gpuadm/gpuadm/test/must"
)

// Task is a command that runs in the host while the test goes on.
type Task struct {
	h      *Host
	done   chan struct{}
	result Result
	err    error
}

// Go starts a command in the host, as root. Wait is to be called before the test ends.
func (h *Host) Go(argv ...string) *Task {
	task := &Task{h: h, done: make(chan struct{})}
	go func() {
		defer close(task.done)
		task.result, task.err = h.try(nil, argv...)
	}()
	return task
}

// Wait waits for its end.
func (t *Task) Wait() Result {
	t.h.t.Helper()
	<-t.done
	must.OK(t.h.t, t.err)
	return t.result
}
