// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"1.7.24": "1 7 true", "v2.1.5": "2 1 true", "2.1.5~ds1": "2 1 true", "2.3-rc.1": "2 3 true", "1.7.24-0ubuntu1": "1 7 true",
		"": "0 0 false", "two": "0 0 false", "2": "0 0 false", "x.1": "0 0 false",
	} {
		major, minor, ok := ParseVersion(in)
		got := fmt.Sprint(major, minor, ok)
		check.That(t, (!ok || got == want) && (ok || strings.HasSuffix(want, "false")), "%q: got %s, want %s", in, got, want)
	}
}

// TestDefaultByName: "nvidia-ctk runtime configure --runtime=docker" writes "path":
// "nvidia-container-runtime", which is found along PATH.
func TestDefaultByName(t *testing.T) {
	h, wants := DefaultRuns(spec.Spec{}, facts.Facts{Programs: []string{Binary}}, Handler{
		Name:    "nvidia",
		Default: true,
	}, "nvidia-container-runtime", false)
	check.That(t, h.Default && len(wants) == 1 && wants[0].Ref().Name == Binary+" runs", "%v, %v", h, wants)
}

// TestDefaultOfAnotherPackage: only the toolkit's own program comes with [toolkit]. To wait for
// another one would be to wait for ever, and to call the node converged without the default.
func TestDefaultOfAnotherPackage(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- etc/ --\n")))(t)
	withToolkit := spec.Spec{Sections: []string{"runtime", "toolkit"}}
	for program, advice := range map[string]string{
		Binary + ".cdi": "install it: the package nvidia-container-toolkit-operator-extensions has it",
		"/opt/runtime":  "install it",
	} {
		h, wants := DefaultRuns(withToolkit, facts.Facts{}, Handler{
			Name:    "nvidia-cdi",
			Binary:  program,
			Default: true,
		}, program, true)
		check.That(t, h.Default, "%s: the default waits for [toolkit]", program)

		found, err := wants[0].Look(t.Context(), n)
		must.OK(t, err)
		_, err = wants[0].To(found)
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "%s: %v", program, err)
		check.Has(t, told.What, program+" is not there", "error")
		check.Equal(t, told.Try[0], advice, "advice")
	}
}

// slow is a machine whose programs do not answer in time.
type slow struct{ host.View }

func (slow) Ask(_ context.Context, argv ...string) ([]byte, error) {
	return nil, &host.CommandError{
		Argv:  argv,
		Code:  -1,
		Cause: host.OverLimit{Limit: time.Second},
	}
}

// TestDefaultWithoutAnAnswer: gpuadm does not say that a slow program lacks runc.
func TestDefaultWithoutAnAnswer(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- " + Binary[1:] + " mode=0755 --\n")))(t)
	asDefault := Handler{Name: "nvidia", Binary: Binary, Default: true}
	_, wants := DefaultRuns(spec.Spec{}, facts.Facts{}, asDefault, Binary, true)
	found, err := wants[0].Look(t.Context(), slow{n})
	check.That(t, errors.As(err, new(host.OverLimit)), "%q, %v", found, err)
}

// TestProgramOf: the spec's program, else the toolkit's by the handler's name.
func TestProgramOf(t *testing.T) {
	for _, x := range []struct{ handler, program, want string }{
		{"auto", "", Binary},
		{"nvidia", "", Binary},
		{"nvidia-cdi", "", "/usr/bin/nvidia-container-runtime.cdi"},
		{"nvidia-legacy", "", "/usr/bin/nvidia-container-runtime.legacy"},
		{"nvidia-cdi", "/opt/x", "/opt/x"},
		{"auto", "/opt/x", "/opt/x"},
	} {
		got := PlainHandler(spec.Runtime{Handler: x.handler, Program: x.program}).Binary
		check.Equal(t, got, x.want, "%s, %s:", x.handler, x.program)
	}
}
