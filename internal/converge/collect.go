// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// undoable are the changes that an undo may still have to put back, of failed and unfinished runs too. What was undone is
// not put back twice, and an undo that ended well is not undone.
func (j Journal) undoable() (list []Change) {
	for _, run := range j.Runs() {
		if !run.settled() {
			list = append(list, run.Makes...)
		}
	}
	return list
}

// collect clears away what was kept for changes that nobody can put back any more. A journal with lines that cannot be read
// may need all of it; one torn by a power cut does not. What cannot be cleared away is told, and no more: a copy too many is no reason to refuse an apply or an undo.
func (r *run) collect(ctx context.Context) {
	if len(r.j.Damaged) > 0 || len(r.j.Records) == 0 {
		return
	}
	var errs []error
	needed := r.j.undoable()
	if names, err := r.h.ReadDir(Home + "/blobs"); err == nil {
		for _, sha := range names {
			names := func(c Change) bool {
				return strings.Contains(string(c.Before), sha) || strings.Contains(string(c.After), sha)
			}
			if len(sha) == len(digest(nil)) && !slices.ContainsFunc(needed, names) {
				errs = append(errs, r.h.Remove(path.Join(Home, "blobs", sha)))
			}
		}
	}
	if r.Prune != nil {
		errs = append(errs, r.Prune(ctx, r.h, needed))
	}
	if err := errors.Join(errs...); err != nil {
		r.event(Event{What: Remains, Text: fmt.Sprintf("cannot clear away what no undo needs any more: %v", err)})
	}
}
