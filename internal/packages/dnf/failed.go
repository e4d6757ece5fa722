// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
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
	// sayScript is rpm's word for a script that failed behind which dnf goes on, and exits with 0: lib/rpmscript.c in rpm's tree.
	sayScript = pattern.Of(`(?m)%(post|posttrans)\((\S+)\) scriptlet failed, (.*?)\s*$`)
)

// dnfLocked is dnf's exit code where another dnf holds one of its locks: dnf(8), dnf/cli/main.py in its tree.
const dnfLocked = 200

// explain says of dnf or rpm that failed what a person can act on.
func explain(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
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
		t.Try = append(t.Try, "dnf check, which says whether anything is broken", "dnf repoquery --showduplicates PACKAGE, which says which versions there are", "dnf makecache --refresh, if the repository has changed since")
	}
	return t
}

// scriptsRan returns an error if a script failed of a package that was installed: dnf goes on, and exits with 0. Scripts of
// what goes away and triggers of others are not counted.
func scriptsRan(out string) error {
	m := sayScript().FindStringSubmatchIndex(out)
	if m == nil {
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot install package %s: its script %%%s failed, %s", out[m[4]:m[5]], out[m[2]:m[3]], out[m[6]:m[7]]),
		Because: append(packages.Tail(out[:strings.LastIndexByte(out[:m[0]], '\n')+1], 6), "dnf itself goes on after such a failure"),
		Try:     []string{"dnf history info last, which has all that it said"},
	}
}

// Describe is Packager's. rpm keeps digests of a package's parts, and none of its file; dnf repoquery has no word for it.
func (dnf) Describe(ctx context.Context, v host.View, names []string) (map[string]packages.Description, error) {
	d, err := readRPM(ctx, v)
	if err != nil {
		return nil, err
	}
	all := map[string]packages.Description{}
	for _, name := range names {
		if p, ok := d.find(name); ok {
			all[name] = packages.Description{Name: p.name, Version: p.evr, Arch: p.arch}
		}
	}
	return all, nil
}
