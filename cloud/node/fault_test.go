// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite the words of the faults")

// faulted checks what an error is by its code, and its words by faults.txt, which has those of all
// faults.
func faulted(t *testing.T, name string, err error, code trouble.Code) {
	t.Helper()
	const words = "testdata/faults.txt"
	must.That(t, errors.Is(err, code), "%s: got %v, want %s", name, err, code)
	head := "# " + strings.TrimSpace(strings.ReplaceAll(name, "\n", " ")) + "\n"
	said := fmt.Sprintf("%s%s, passes: %t\n%v\n%s", head, code, trouble.Passes(err), err, joins.Because(err))
	said = strings.ReplaceAll(strings.TrimSpace(trouble.Commands(said, trouble.Plain)), " \n", "\n") + "\n\n"
	all := strings.SplitAfter(string(must.Get(os.ReadFile(words))(t)), "\n\n")
	if *update {
		all = slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, head) })
		all = append(all, said)
		slices.Sort(all)
		must.OK(t, os.WriteFile(words, []byte(strings.Join(all, "")), 0o644))
	}

	check.That(t, slices.Contains(all, said), "%s does not have this; if it is meant: make update\n%s", words, said)
}

// faulted applies, checks what that finds, and that pods stay away.
func (a *apiNode) faulted(name string, code trouble.Code) {
	a.t.Helper()
	_, err := a.engine().Apply(a.ctx, a)
	faulted(a.t, name, err, code)
	check.That(a.t, !a.ready() && a.tainted("example.com/starting"), "%s: pods may come:\n%s", name, a.shown())
}
