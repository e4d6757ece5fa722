// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

const (
	aptLists = "/var/lib/apt/lists"
	aptKeys  = "/etc/apt/keyrings/"
)

// Affects says that lists are read again with new keys.
func (apt) Affects(_ []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, aptKeys) || by.Form == packages.FormDeclared
}

// Stale compares times of files, and not of what they say: apt keeps a list's own time, that of the repository.
//
// Where our files configure no repository, and only pin what the distribution's have, the youngest of its lists counts: some
// repository of others may have failed for long.
func (apt) Stale(v host.View, files []string) (bool, error) {
	sources, err := sourcesIn(v, files)
	if err != nil {
		return false, err
	}
	for _, s := range sources {
		_, read := release(v, s)
		if read.IsZero() {
			return true, nil
		}
		for _, name := range slices.Concat(files, s.signedBy, packages.LocksOf(s.uri)) { // a mirror that was written since
			if i, err := v.Stat(name); err == nil && i.Ctime.After(read) {
				return true, nil
			}
		}
	}
	pinned := time.Time{}
	for _, f := range files {
		if i, err := v.Stat(f); err == nil {
			pinned = i.Ctime
		}
	}
	if len(sources) > 0 || pinned.IsZero() {
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

// Known asks the lists on disk, and says when the youngest of them was read: never, if one that is configured is
// missing. Ours are left out.
func (a apt) Known(ctx context.Context, v host.View, names, ours []string) (map[string][]packages.Offer, time.Time, error) {
	var youngest time.Time
	for _, s := range allSources(v) {
		if slices.Contains(ours, s.file) {
			continue
		}
		read := readAt(v, s)
		if i, err := v.Stat(s.file); read.IsZero() || err != nil || i.Ctime.After(read) {
			return nil, time.Time{}, err
		}
		if read.After(youngest) {
			youngest = read
		}
	}
	if youngest.IsZero() {
		return nil, youngest, nil
	}
	offers, err := a.Offers(ctx, v, names)
	return offers, youngest, err
}

// readAt says when a list of a source was read. One that is not signed, and trusted all the same, has no Release.
func readAt(v host.View, s source) time.Time {
	if _, read := release(v, s); !read.IsZero() {
		return read
	}
	for _, name := range packages.ListOf(v, aptLists) {
		if strings.HasPrefix(name, s.list()) {
			if i, err := v.Lstat(aptLists + "/" + name); err == nil { // of file: URIs it may be a link
				return i.Ctime
			}
		}
	}
	return time.Time{}
}
