// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Lost marks replaced packages whose version is no longer available: neither from an offer, as a
// rollback would ask, nor as a file in Store. If one of the packages asked for cannot be restored,
// none is; they do not need their earlier dependencies.
func (r *Resolution) Lost(again map[string][]Offer, stored func(name, version string) bool) {
	whyAll := ""
	for i, c := range r.Changes {
		before, after := Parse(c.Before), Parse(c.After)
		stays := before.Version == after.Version && after.Installed() && before.Broken == ""
		if !before.Installed() || stays {
			continue
		}

		why := ""
		_, offered := Find(again[c.Name], before.Version)
		switch {
		case before.Broken != "":
			why = fmt.Sprintf("%s was %s, and is not installed so again", c.Name, before.Broken)
		case !offered && !stored(c.Name, before.Version):
			why = fmt.Sprintf("no %s has %s %s any more", r.Solver.Words().Source, c.Name, before.Version)
			if !c.Dependency {
				whyAll = why
			}
		}

		r.Changes[i].Lost = cmp.Or(why, c.Lost)
	}

	for i, c := range r.Changes {
		r.Changes[i].Lost = cmp.Or(c.Lost, whyAll)
	}
}

// Replaced names the packages whose installed version gets replaced.
func (r *Resolution) Replaced() (names []string) {
	for _, c := range r.Changes {
		before := Parse(c.Before)
		if before.Installed() && before.Version != Parse(c.After).Version {
			names = append(names, c.Name)
		}
	}
	return names
}

// Unkept warns of packages that get replaced without a copy in Store. The transaction continues,
// and so would a rollback: a repository that does not answer must not stop a repair. err is the
// fetch's error; Unkept returns it only if the run was stopped. It does not name packages that the
// plan has marked as lost, nor broken ones.
func (r *Resolution) Unkept(ctx context.Context, h host.Host, err error) error {
	lost := map[string]bool{}
	for _, c := range r.Changes {
		broken := Parse(c.Before).Broken
		isBroken := broken != "" && broken != ConfigFiles
		lost[c.Name] = isBroken || c.Lost != ""
	}

	names := slices.DeleteFunc(r.Replaced(), func(name string) bool { return lost[name] })
	return unkept(ctx, h, r.Solver, names, r.Installed, err)
}

// unkept warns of packages, by name, whose installed version is not in Store. err is the error of
// the fetch.
func unkept(
	ctx context.Context,
	h host.Host,
	p Packager,
	names []string,
	all map[string]State,
	err error,
) error {
	if ctx.Err() != nil {
		return err
	}
	var lost []string
	for _, name := range names {
		version := all[name].Version
		if p.Stored(h, name, version) == "" {
			lost = append(lost, name+" "+version)
		}
	}

	if len(lost) == 0 {
		return nil
	}

	const most = 3
	what := strings.Join(lost[:min(len(lost), most)], ", ")
	if len(lost) > most {
		what += fmt.Sprintf(" and %d more", len(lost)-most)
	}
	cause := "no repository has that version"
	if err != nil {
		cause = strings.TrimPrefix(err.Error(), Cannot)
		var t *trouble.Error
		if errors.As(err, &t) && len(t.Because) > 0 {
			cause += ": " + t.Because[0]
		}
	}

	converge.Say(ctx, converge.Unkept, "cannot keep "+what+": "+cause+"; to install it again gpuadm will need a repository that has it")
	return nil
}
