// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

var (
	sayDnfError  = pattern.Of(`(?m)^Error: .*$|^error: .*$`)
	sayUnmatched = pattern.Of(`(?m)^(?:No match for argument: |Unable to find a match|All matches were filtered out by |Package \S+ not available|Installed package \S+ .*not available|Error: No packages? marked)`)
	// sayScript matches rpm's message about a failed script, after which dnf continues and exits
	// with 0: lib/rpmscript.c in rpm's tree.
	sayScript = pattern.Of(`(?m)%(post|posttrans)\((\S+)\) scriptlet failed, (.*?)\s*$`)
)

// dnfLocked is dnf's exit code where another dnf holds one of its locks: dnf(8), dnf/cli/main.py in
// its tree.
const dnfLocked = 200

// explain turns a failure of dnf or rpm into an error that an operator can act on.
func explain(v host.View, out string, err error) error {
	var failed *host.CommandError
	if !errors.As(err, &failed) {
		return err
	}
	if failed.Code == dnfLocked {
		return packages.Busy(v, holder(v), "dnf's lock", err)
	}
	if packages.MarkLock().MatchString(failed.Stderr) {
		return packages.Busy(v, holder(v), "rpm's lock", err)
	}

	t, known := packages.Failure(v, failed, out, err)
	if !known {
		t.Try = append(t.Try,
			"dnf check, which says whether anything is broken",
			"dnf repoquery --showduplicates PACKAGE, which says which versions there are",
			"dnf makecache --refresh, if the repository has changed since")
	}

	return t
}

// scriptsRan returns an error if the script of an installed package failed: dnf continues, and
// exits with 0. It ignores the scripts of removed packages and the triggers of others.
func scriptsRan(out string) error {
	at := sayScript().FindStringIndex(out)
	if at == nil {
		return nil
	}

	m := sayScript().FindStringSubmatch(out)
	script := m[1]
	name := m[2]
	cause := m[3]
	before := out[:strings.LastIndexByte(out[:at[0]], '\n')+1]
	return &trouble.Error{
		What:    fmt.Sprintf("cannot install package %s: its script %%%s failed, %s", name, script, cause),
		Because: append(packages.Tail(before, 6), "dnf itself goes on after such a failure"),
		Try:     []string{"dnf history info last, which has all that it said"},
	}
}
