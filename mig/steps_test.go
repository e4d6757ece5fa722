// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestStepsInWords(t *testing.T) {
	m := model(t, "A100-40")
	steps := must.Get(m.Steps(state(t, "on 1g.5gb@0 3g.20gb@4(1c,1c)"), state(t, "off")))(t)
	back := must.Get(m.Steps(state(t, "off"), state(t, "on 3g.20gb@4(2c,1c)")))(t)
	var words []string
	for _, s := range append(steps, back...) {
		words = append(words, s.String())
	}
	want := `destroy compute instance 1c in 1g.5gb at 0
destroy 1g.5gb at 0
destroy compute instance 1c in 3g.20gb at 4
destroy compute instance 1c in 3g.20gb at 4
destroy 3g.20gb at 4
switch MIG mode off
reset the GPU
switch MIG mode on
reset the GPU
create 3g.20gb at 4
create compute instance 2c in 3g.20gb at 4
create compute instance 1c in 3g.20gb at 4`
	if got := strings.Join(words, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestFailureInWords: the error of each kind of step is a sentence.
func TestFailureInWords(t *testing.T) {
	of := Step{Name: "3g.20gb", At: host.Span{Start: 4, Size: 4}, Slices: 1}
	for do, want := range map[Deed]string{
		ModeOn:          "cannot switch MIG mode on for GPU 0000:17:00.0: x; it is in its former state",
		ModeOff:         "cannot switch MIG mode off for GPU 0000:17:00.0: x; it is in its former state",
		Reset:           "cannot reset GPU 0000:17:00.0: x; it is in its former state",
		DestroyCompute:  "cannot destroy compute instance 1c in 3g.20gb at 4 on GPU 0000:17:00.0: x; it is in its former state",
		DestroyInstance: "cannot destroy 3g.20gb at 4 on GPU 0000:17:00.0: x; it is in its former state",
		CreateInstance:  "cannot create 3g.20gb at 4 on GPU 0000:17:00.0: x; it is in its former state",
		CreateCompute:   "cannot create compute instance 1c in 3g.20gb at 4 on GPU 0000:17:00.0: x; it is in its former state",
	} {
		of.Do = do
		f := &Failure{RolledBack: RolledBack{GPU: "0000:17:00.0"}, Step: of, Err: errors.New("x")}
		if got := f.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := explain(f, nil).(*trouble.Error).What + "; it is in its former state"; got != want {
			t.Errorf("the engine says %q, want %q", got, want)
		}
	}
}
