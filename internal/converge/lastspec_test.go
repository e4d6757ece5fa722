// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// ownEngine applies a machine's own spec by these stages.
func (b *toybox) ownEngine(t *testing.T, text string, stages ...converge.Stage) *converge.Engine {
	t.Helper()
	e := b.engine(stages...)
	e.Spec = must.Get(spec.Parse(spec.File{Data: []byte(text)}))(t)
	e.Own = true
	return e
}

const (
	redSpec  = "format = 1\n[node]\nlabels = { colour = \"red\" } # not kept\n"
	blueSpec = "format = 1\n[node]\nlabels = { colour = \"blue\" }\n"
)

// lastColour is what the spec says that was applied last; "" if there is none.
func (b *toybox) lastColour(t *testing.T) string {
	t.Helper()
	last, err := converge.ReadLastSpec(b)
	if errors.Is(err, converge.ErrNoLastSpec) {
		return ""
	}
	must.OK(t, err)
	return last.Node.Labels["colour"]
}

// TestLastSpec: an apply of the machine's own spec that ends well keeps the spec, readable by root
// alone, whether it changes something or not. An apply that fails, and one of another spec, keep the
// spec of before.
func TestLastSpec(t *testing.T) {
	box := newToybox(t, states{"a": "blue"})
	blue := stage("toys", box.want("block", "a", "blue"))
	red := stage("toys", box.want("block", "a", "red"))
	check.Equal(t, box.lastColour(t), "", "before the first apply: the spec")

	must.Get(box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box))(t)
	check.Equal(t, box.lastColour(t), "blue", "nothing to do: the spec")
	info := must.Get(box.Lstat(converge.LastSpecFile))(t)
	check.Equal(t, info.Mode, fs.FileMode(0o600), "the file's mode")

	touches := box.Touches()
	must.Get(box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box))(t)
	check.Equal(t, box.Touches(), touches, "a second apply of the same spec: touches")

	box.broken = "a"
	_, err := box.ownEngine(t, redSpec, red).Apply(t.Context(), box)
	must.That(t, err != nil, "an apply of a broken toy succeeded")
	check.Equal(t, box.lastColour(t), "blue", "after an apply that failed: the spec")

	box.broken = ""
	box.apply(t, red)
	check.Equal(t, box.lastColour(t), "blue", "after an apply of another spec: the spec")

	must.Get(box.ownEngine(t, redSpec, red).Apply(t.Context(), box))(t)
	check.Equal(t, box.lastColour(t), "red", "after an apply of the own spec: the spec")
	text := string(must.Get(box.ReadFile(converge.LastSpecFile))(t))
	check.That(t, !strings.Contains(text, "not kept"), "the file has a comment of node.toml:\n%s", text)
}

// TestLastSpecUndone: an undo removes the spec that it has reverted.
func TestLastSpecUndone(t *testing.T) {
	box := newToybox(t, states{})
	blue := stage("toys", box.want("block", "a", "blue"))
	must.Get(box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box))(t)
	must.That(t, box.lastColour(t) == "blue", "no spec is kept")
	box.undo(t)
	check.Equal(t, box.lastColour(t), "", "after an undo: the spec")

	e := box.ownEngine(t, blueSpec, blue)
	e.Unattended = true
	must.Get(e.Apply(t.Context(), box))(t)
	check.Equal(t, box.lastColour(t), "", "after an apply that the undo holds: the spec")
}

// TestLastSpecPowerCut: power is cut before any touch of an apply and of an undo. The file is then
// whole or missing, and the next run leaves it as a straight run does.
func TestLastSpecPowerCut(t *testing.T) {
	for _, verb := range []string{"apply", "undo"} {
		for at, cut := 0, true; cut; at++ {
			box := newToybox(t, states{})
			blue := stage("toys", box.want("block", "a", "blue"))
			do := func() {
				if verb == "apply" {
					_, _ = box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box)
				} else {
					_, _ = box.engine(blue).Undo(t.Context(), box, "all", nil)
				}
			}

			if verb == "undo" {
				must.Get(box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box))(t)
			}

			box.CutAt(box.Touches() + at)
			do()
			cut = box.Off()
			box.Boot(simhost.LoseAll)
			_, err := converge.ReadLastSpec(box)
			whole := err == nil || errors.Is(err, converge.ErrNoLastSpec)
			check.That(t, whole, "%s cut at touch %d: %v", verb, at, err)

			do()
			want := map[string]string{"apply": "blue", "undo": ""}[verb]
			check.Equal(t, box.lastColour(t), want, "%s again after a cut at touch %d: the spec", verb, at)
		}
	}
}

// TestLastSpecRefused: a file that another user can write, that the disk has changed, or that this
// version of gpuadm does not understand is not used, and the error says why.
func TestLastSpecRefused(t *testing.T) {
	box := newToybox(t, states{"a": "blue"})
	blue := stage("toys", box.want("block", "a", "blue"))
	apply := func() { must.Get(box.ownEngine(t, blueSpec, blue).Apply(t.Context(), box))(t) }
	apply()
	text := string(must.Get(box.ReadFile(converge.LastSpecFile))(t))
	put := func(text string, mode fs.FileMode) {
		must.OK(t, box.WriteFile(converge.LastSpecFile, []byte(text), host.Attr{Mode: mode}))
	}
	refused := func(what string) {
		t.Helper()
		_, err := converge.ReadLastSpec(box)
		check.Has(t, fmt.Sprint(err), what, "the error")
		apply()
		check.Equal(t, box.lastColour(t), "blue", "the next apply keeps the spec again:")
	}

	put(text, 0o666)
	refused("cannot trust " + converge.LastSpecFile + ": all users can write to it")
	put(strings.Replace(text, "blue", "glue", 1), 0o600)
	refused("its bytes have changed since gpuadm wrote it")
	put(converge.WithHead("format = 1\n[tomorrow]\n"), 0o600)
	refused("another version of gpuadm wrote")
}

// TestLastSpecUnkept: an apply that cannot keep the spec has ended well, and says what is missing.
func TestLastSpecUnkept(t *testing.T) {
	box := newToybox(t, states{"a": "blue"})
	e := box.ownEngine(t, blueSpec, stage("toys", box.want("block", "a", "blue")))
	var said []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Unkept {
			said = append(said, ev.Text)
		}
	}

	box.Fail(box.Touches(), syscall.ENOSPC)
	must.Get(e.Apply(t.Context(), box))(t)
	check.Has(t, strings.Join(said, "\n"), "cannot keep the spec for a boot", "the events")
}
