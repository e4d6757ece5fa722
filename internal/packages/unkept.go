// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// unkept says which packages get replaced without a copy in our folder, and why; the transaction goes on without them, forwards
// and back: a repository that does not answer must hold no machine in what broke it. err is of the fetch, and returned only
// where the run was stopped. Of what is known to be lost the plan has told already.
func Unkept(ctx context.Context, changes []converge.Change, now func(name string) State, kept func(name, version string) string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	const most = 3
	var lost []string
	for _, c := range Replaced(changes, now) {
		if version := now(c.Name).Version; c.Keeps == "" && kept(c.Name, version) == "" {
			lost = append(lost, c.Name+" "+version)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	what, cause := strings.Join(lost[:min(len(lost), most)], ", "), "no repository has that version"
	if len(lost) > most {
		what += fmt.Sprintf(" and %d more", len(lost)-most)
	}
	if err != nil {
		cause = strings.TrimPrefix(err.Error(), Cannot)
		if t := (*converge.Trouble)(nil); errors.As(err, &t) && len(t.Because) > 0 {
			cause += ": " + t.Because[0]
		}
	}
	converge.Warn(ctx, "cannot keep "+what+": "+cause+"; to install it again gpuadm will need a repository that has it")
	return nil
}

// replaced returns the changes that take away a version that is installed. Where anything is broken there are none: what is
// installed is not worth keeping, and must not stop what repairs it.
func Replaced(changes []converge.Change, now func(name string) State) (gone []converge.Change) {
	for _, c := range changes {
		found, after := now(c.Name), Parse(c.After)
		if found.Broken != "" && found.Broken != ConfigFiles {
			return nil
		}
		if found.Installed() && found.Version != after.Version {
			gone = append(gone, c)
		}
	}
	return gone
}
