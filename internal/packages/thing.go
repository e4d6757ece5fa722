// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// thing is one package by its name.
type thing struct {
	set *Set
	pkg string
}

// New builds the thing from its name, for undo. The things of one run share a reading of the
// packager's database: after a transaction it is read once for all.
func New(name string, database *Reading) converge.Thing {
	return thing{NewSet(database), name}
}

// Want wants a package in a version, which may be open, with the hold and the mark of the state to.
func Want(set *Set, name string, to State, why string) converge.Want {
	set.wanted[name] = to
	asFound := slices.Contains(set.AsFound, name)
	return converge.Want{
		Thing:   thing{set, name},
		Why:     why,
		AsFound: asFound,
		To: func(found converge.State) (converge.State, error) {
			if asFound && !Parse(found).Installed() {
				return found, nil
			}
			return set.to(name, Parse(found), to)
		},
	}
}

// to returns the desired state of a package in the state found.
func (s *Set) to(name string, found, wanted State) (converge.State, error) {
	group, pattern, isOpen := wanted.open()
	_, _, isFoundOpen := found.open()
	takesAny := isOpen && pattern == "*" && !wanted.Held // whether marked as automatic or not
	if isFoundOpen || takesAny && found.whole() {
		return found.String(), nil
	}

	// A hold that another tool has set stays.
	wanted.Held = wanted.Held || found.Held
	isSplit := isOpen && s.split(group)
	if found.meets(wanted) && !isSplit {
		return found.marked(wanted).String(), nil
	}
	return wanted.String(), nil
}

// Guards requires an operator's permission to change a package that another tool holds, even one
// that it holds as not installed.
func (t thing) Guards(found, left, after converge.State) (allow, who string) {
	is := Parse(found)
	was := Parse(left)
	to := Parse(after)
	unchanged := is.Version == to.Version && is.Installed() == to.Installed()
	heldByGpuadm := was.Held && was.Version == is.Version
	if !is.Held || unchanged || heldByGpuadm {
		return "", ""
	}

	if !is.Installed() {
		return "change-held", t.pkg + " is held as not installed"
	}
	return "change-held", t.pkg + " is held at " + is.Version
}

func (t thing) Ref() converge.Ref { return packageRef(t.pkg) }

func (t thing) Look(ctx context.Context, v host.View) (converge.State, error) {
	all, err := t.set.Read(ctx, v)
	if err != nil {
		return "", err
	}
	return all[t.pkg].String(), nil
}

func (t thing) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := t.Look(ctx, h)
	if err != nil {
		return err
	}
	return t.MakeAll(ctx, h, []converge.Change{{
		Ref:    t.Ref(),
		Before: found,
		After:  to,
	}})
}

// MakeAll makes all changes in one transaction.
func (t thing) MakeAll(ctx context.Context, h host.Host, changes []converge.Change) error {
	packager, err := t.set.packager(h)
	if err != nil {
		return err
	}
	defer t.set.Forget()

	if err := refresh(ctx, h, packager, changes); err != nil {
		return err
	}
	return packager.Transact(ctx, h, changes)
}

// refresh reads the lists again if they are older than gpuadm's files about repositories, and Store
// lacks a version: a roll-back restores these files first. If no list can be read, the transaction
// reports what is missing.
func refresh(ctx context.Context, h host.Host, packager Packager, changes []converge.Change) error {
	if InStore(h, packager, changes) {
		return nil
	}

	files := append(gpuadmFiles(h, "/etc/apt/sources.list.d"), gpuadmFiles(h, "/etc/yum.repos.d")...)
	stale, err := packager.Stale(h, files)
	if err != nil || !stale {
		return err
	}
	if failed := packager.Update(ctx, h, files); failed != nil {
		converge.Say(ctx, converge.Unkept, failed.Error())
	}
	return nil
}

// Lacks returns the changes to versions that neither a repository nor Store has: undo refuses them.
func (t thing) Lacks(ctx context.Context, v host.View, pending []converge.Change) ([]converge.Change, error) {
	packager, err := t.set.packager(v)
	if err != nil {
		return nil, err
	}

	// Lost asks for the versions before the changes; here those after them are needed.
	r := Resolution{Changes: slices.Clone(pending), Solver: packager.Available()}
	for i, c := range pending {
		r.Changes[i].Before = c.After
		r.Changes[i].After = c.Before
		r.Changes[i].Lost = ""
	}

	offers, err := r.Solver.Offers(ctx, v, r.Replaced())
	r.Lost(offers, func(name, version string) bool {
		return packager.Stored(v, name, version) != ""
	})
	return slices.DeleteFunc(r.Changes, func(c converge.Change) bool {
		return c.Lost == ""
	}), err
}

// TakeOut reverts gpuadm's change of a package whose marks have changed since, or that a
// transaction left incomplete, in whatever version: gpuadm's own has one of the change's two. Marks
// that were set or cleared outside gpuadm stay, and so does any other version. An open version,
// which the spec asks for, replaces whatever another process has installed: nothing of that stays.
func (t thing) TakeOut(
	_ host.View,
	found, before, after converge.State,
) (rest converge.State, left []string, err error) {
	is := Parse(found)
	was := Parse(before)
	made := Parse(after)

	// An incomplete package is of a process that was killed, and no operator wants to keep it.
	isIncomplete := is.Broken != "" && is.Broken != ConfigFiles
	isKnown := isIncomplete || is.Version == was.Version || is.Version == made.Version
	_, _, isOpen := is.open()
	switch {
	case isOpen, !isKnown && before == after:
		return found, nil, nil
	case !isKnown:
		text := fmt.Sprintf("package %s is %q, gpuadm had made it %q", t.pkg, found, after)
		return found, []string{text}, nil
	case !was.Installed():
		return before, nil, nil
	}

	if is.Held != made.Held {
		was.Held = is.Held
	}
	if is.Auto != made.Auto {
		was.Auto = is.Auto
	}
	return was.String(), nil, nil
}

// Chosen wants two kinds of packages that an earlier run installed: an optional part of the family,
// which its source had; and a dependency that gpuadm holds, as long as another package needs it.
func (t thing) Chosen(first, last converge.Change) (w converge.Want, ok bool) {
	if !Parse(last.After).Installed() {
		return w, false
	}

	part := thing{t.set, last.Name}
	_, isAsked := t.set.wanted[last.Name]
	wasThere := Parse(first.Before).Installed()
	switch {
	case t.set.Family.extra(last.Name):
		return part.optional(), true
	case !isAsked && !wasThere:
		return part.whileNeeded(), true
	}

	return w, false
}

// optional wants a part if a source has it. A part that an operator holds as not installed is not
// installed.
func (t thing) optional() converge.Want {
	return converge.Want{
		Thing:   t,
		Why:     "an optional part of the driver, which an earlier run installed",
		AsFound: true,
		To: func(found converge.State) (converge.State, error) {
			is := Parse(found)
			if is.Installed() || is.Version == Nowhere {
				return found, nil
			}
			return State{Version: ifOffered}.String(), nil
		},
	}
}

// whileNeeded wants a dependency until the other changes make it unneeded. gpuadm holds it, so
// apt's autoremove would never remove it. If an operator has asked for it since, or has taken the
// hold off, it is the operator's.
func (t thing) whileNeeded() converge.Want {
	return converge.Want{
		Thing:   t,
		Why:     "a dependency that an earlier run brought",
		AsFound: true,
		Stays:   true,
		To: func(found converge.State) (converge.State, error) {
			is := Parse(found)
			if is.Installed() && is.Auto && is.Held {
				return State{Version: ifNeeded}.String(), nil
			}
			return found, nil
		},
	}
}

// Resolve chooses the open versions and adds the dependencies. A package whose version meets the
// spec stays, so a converged machine asks no packager.
func (t thing) Resolve(
	ctx context.Context,
	v host.View,
	pending []converge.Change,
) ([]converge.Change, error) {
	brought, others := separateBrought(pending)
	converged, due := t.set.sortOut(others)
	converged = append(converged, brought...)
	if len(due) == 0 {
		return converged, nil
	}

	// The family adds the optional parts that its source has; the others stay away.
	var asked []converge.Change
	for _, c := range due {
		if isOptional(c) {
			c.After = c.Before
			converged = append(converged, c)
		} else {
			asked = append(asked, c)
		}
	}

	if err := t.set.ready(ctx, v); err != nil {
		return nil, err
	}
	packager, err := t.set.packager(v)
	if err != nil {
		return nil, err
	}
	all, err := t.set.Read(ctx, v)
	if err != nil {
		return nil, err
	}
	resolved, err := packager.Resolve(ctx, v, Request{
		Changes:  asked,
		Versions: t.set.versions(all, asked),
		Family:   t.set.Family,
		IfThere:  t.set.IfThere,
		Brought:  brought,
		Stream:   t.set.Stream,
	})
	if err == nil {
		err = brings(ctx, v, packager, resolved)
	}

	// The others may need a converged package in another revision.
	inResolved := func(c converge.Change) bool { return indexOf(resolved, c.Name) >= 0 }
	converged = slices.DeleteFunc(converged, inResolved)
	return slices.Concat(converged, resolved), t.set.advised(err)
}

// separateBrought separates the changes to dependencies that go once no package needs them. These
// stay as found until then.
func separateBrought(pending []converge.Change) (brought, others []converge.Change) {
	for _, c := range pending {
		if Parse(c.After).Version != ifNeeded {
			others = append(others, c)
			continue
		}
		c.After = c.Before
		brought = append(brought, c)
	}
	return brought, others
}

// isOptional reports whether a change is to a part that is wanted only if a source has it.
func isOptional(c converge.Change) bool { return Parse(c.After).Version == ifOffered }

// sortOut separates the changes that the state found meets from those that need the packager.
func (s *Set) sortOut(pending []converge.Change) (converged, due []converge.Change) {
	for _, c := range pending {
		before := Parse(c.Before)
		after := Parse(c.After)
		group, _, isOpen := after.open()
		switch {
		case isOpen && before.meets(after) && !s.split(group):
			c.After = before.marked(after).String()
		case after.Version == removed && !before.Installed():
			c.After = c.Before
		}

		if c.After == c.Before {
			converged = append(converged, c)
		} else {
			due = append(due, c)
		}
	}
	return converged, due
}
