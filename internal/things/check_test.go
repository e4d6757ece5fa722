// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestCheckLines tells what the further lines of a problem are: more about it, as of an error of
// several lines, and not what to do, unless they say so.
func TestCheckLines(t *testing.T) {
	for problem, want := range map[string]trouble.Error{
		"cannot a":                           {What: "cannot a", Try: []string{"fix"}},
		"cannot a\nrpc b\n\nc":               {What: "cannot a", Because: []string{"rpc b", "c"}, Try: []string{"fix"}},
		"cannot a" + things.OrTry("if b: c"): {What: "cannot a", Try: []string{"fix", "if b: c"}},
		"cannot a\n  why \r\n" + things.OrTry("b") + "\nwhy": {What: "cannot a", Because: []string{"why", "why"}, Try: []string{"fix", "b"}},
	} {
		w := things.Check("a", func(context.Context, host.View) (string, error) {
			return problem, nil
		}, "", "fix")
		_, err := w.To(converge.State(problem))
		got := (*trouble.Error)(nil)
		must.That(t, errors.As(err, &got), "%v", err)
		want.Err = trouble.Code("a")
		check.None(t, cmp.Diff(want, *got), "%q:", problem)
	}
}
