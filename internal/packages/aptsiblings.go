// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// exactly one version: deb-control(5), Depends. Alternatives are left to apt.
var sibling = pattern.Of(`^([a-z0-9][a-z0-9+.-]*)(?::any)? \(= ([^ )]+)\)$`)

// siblings adds the packages that what is asked for depends on in exactly one version: libraries of the driver's. apt by
// itself would take the newest of them, or what its pins say, and then find that it does not fit. They are held like
// those that need them: else an upgrade would tear the set apart.
func (r *resolution) siblings(ctx context.Context, v host.View) error {
	asked := map[string]bool{}
	for _, c := range r.changes {
		asked[c.Name] = true
	}
	// Not only of what is due: where a run was cut short before it set the marks, those of siblings are missing too.
	for next := r.changes; len(next) > 0; {
		found, err := r.exact(ctx, v, next, asked)
		if err != nil || len(found) == 0 {
			return err
		}
		var names []string
		for _, c := range found {
			names = append(names, c.Name)
		}
		offers, err := r.apt.offers(ctx, v, names)
		if err != nil {
			return err
		}
		maps.Copy(r.offers, offers)
		r.changes, next = append(r.changes, found...), found
	}
	return nil
}

// exact returns the changes that the exact dependencies of some changes ask for, and that nobody asked for yet.
func (r *resolution) exact(ctx context.Context, v host.View, of []converge.Change, asked map[string]bool) (list []converge.Change, err error) {
	var what []string
	held := map[string]bool{}
	for _, c := range of {
		if after := Parse(c.After); after.Installed() {
			if _, ok := find(r.offers[c.Name], after.Version); !ok {
				continue // a file of ours; apt reads its dependencies
			}
			name := c.Name + "=" + after.Version
			what, held[name] = append(what, name), after.Held
		}
	}
	all, err := r.records(ctx, v, r.d.native, what)
	if err != nil {
		return nil, err
	}
	for _, rec := range all {
		if !slices.Contains(what, rec.name+"="+rec.version) {
			continue
		}
		for _, dep := range strings.Split(rec.depends, ",") {
			m := sibling().FindStringSubmatch(strings.TrimSpace(dep))
			if m == nil || asked[m[1]] {
				continue
			}
			asked[m[1]] = true
			found := r.d.packages[m[1]].State
			hold := held[rec.name+"="+rec.version]
			if found.Version == m[2] && found.Installed() && found.Broken == "" && (found.Held || !hold) {
				continue
			}
			to := State{Version: m[2], Held: found.Held || hold, Auto: found.Auto || !found.Installed()}
			list = append(list, converge.Change{
				Kind: "package", Name: m[1], Before: found.String(), After: to.String(),
				Why: "needed by " + rec.name + " in this version", Drawn: true,
			})
		}
	}
	return list, nil
}
