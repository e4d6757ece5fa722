// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// lists are the packager's own of what repositories hold. They settle: once our files about repositories have changed,
// they are read anew. Their states are "fresh" and "stale"; a repository that is not configured is not read, so fresh.
type lists struct {
	system string   // apt, dnf
	files  []string // ours, about repositories
}

const (
	fresh = converge.State("fresh")
	stale = converge.State("stale")
)

// A lister reads one packaging system's lists.
type lister interface {
	// stale says whether lists of repositories that our files configure are missing, or older than those files.
	stale(v host.View, files []string) (bool, error)
	// update reads them anew, and fails if any of ours cannot be read or is not to be trusted.
	update(ctx context.Context, h host.Host, files []string) error
}

func listerOf(system string) (lister, error) {
	switch system {
	case "apt":
		return newApt(), nil
	case "dnf":
		return newDnf(), nil
	}
	return nil, fmt.Errorf("internal error: no lists of %q are known", system)
}

// Lists wants the packager's lists to be those of our files about repositories. system is what Detect returned.
func Lists(system string, files []string, why string) converge.Want {
	l := lists{system, files}
	return converge.Want{Thing: l, Why: why, To: func(found converge.State) (converge.State, error) { return l.Settled(found), nil }}
}

// NewLists builds the thing again.
func NewLists(system string, files []string) converge.Thing { return lists{system, files} }

func (l lists) Kind() string { return "package-lists" }

// Name is the package manager's: "apt".
func (l lists) Name() string { return l.system }

// Reads is converge.Reader's.
func (l lists) Reads() []string { return l.files }

// Look defers lists of a root folder: reading them runs the packager, which has no machine there.
func (l lists) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	of, err := listerOf(l.system)
	if err != nil {
		return "", err
	}
	old, err := of.stale(v, l.files)
	if err != nil {
		return "", err
	}
	if old {
		return stale, nil
	}
	return fresh, nil
}

func (l lists) Make(ctx context.Context, h host.Host, to converge.State) error {
	if found, err := l.Look(ctx, h); to != fresh || err != nil || found == fresh {
		return err
	}
	of, err := listerOf(l.system)
	if err != nil {
		return err
	}
	return of.update(ctx, h, l.files)
}

// Unsettled says that a change to a file about a repository makes the lists stale, but not its going away.
func (l lists) Unsettled(found converge.State, by converge.Change) converge.State {
	if found != "" && by.After == "" && by.Deferred == "" {
		return found
	}
	if slices.Contains(l.files, by.Name) || by.Kind == "package" && slices.Contains(l.files, broughtBy(by.Name)) || strings.HasPrefix(by.Name, keysOf(l.system)) {
		return stale
	}
	return found
}

// Settled says that lists are to be fresh.
func (l lists) Settled(converge.State) converge.State { return fresh }

const (
	aptLists = "/var/lib/apt/lists"
	aptKeys  = "/etc/apt/keyrings/"
	dnfKeys  = "/etc/pki/rpm-gpg/"
)

// keysOf is the folder of the keys that lists are checked with.
func keysOf(system string) string {
	if system == "dnf" {
		return dnfKeys
	}
	return aptKeys
}

// stale compares times of files, and not of what they say: apt keeps a list's own time, that of the repository.
//
// Where our files configure no repository, and only pin what the distribution's have, the youngest of its lists counts: some
// repository of others may have failed for long.
func (apt) stale(v host.View, files []string) (bool, error) {
	arch := architecture(v)
	configured, pinned := 0, time.Time{}
	for _, f := range files {
		data, err := v.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return false, err
		}
		if i, err := v.Stat(f); err == nil {
			pinned = i.Ctime
		}
		for _, s := range parseSources(f, data, arch) {
			configured++
			_, read := release(v, s)
			if read.IsZero() {
				return true, nil
			}
			for _, name := range slices.Concat(files, s.signedBy) {
				if i, err := v.Stat(name); err == nil && i.Ctime.After(read) {
					return true, nil
				}
			}
		}
	}
	if configured > 0 || pinned.IsZero() {
		return false, nil
	}
	_, read := youngest(v)
	return !read.After(pinned), nil
}

// youngest returns the list of the machine's repositories that was read last: a signed one, or, where none is signed, any.
func youngest(v host.View) (name string, read time.Time) {
	for _, s := range allSources(v) {
		if file, at := release(v, s); at.After(read) {
			name, read = file, at
		}
	}
	if name != "" {
		return name, read
	}
	names, _ := v.ReadDir(aptLists) // none before the first update
	for _, n := range names {
		if i, err := v.Stat(aptLists + "/" + n); err == nil && i.Mode.IsRegular() && n != "lock" && i.Ctime.After(read) {
			name, read = aptLists+"/"+n, i.Ctime
		}
	}
	return name, read
}

// release returns the file that apt keeps as a source's signed list, and when it was put there.
func release(v host.View, s source) (string, time.Time) {
	for _, end := range []string{"InRelease", "Release"} {
		name := aptLists + "/" + s.list() + end
		if i, err := v.Stat(name); err == nil {
			return name, i.Ctime
		}
	}
	return "", time.Time{}
}
