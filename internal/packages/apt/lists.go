// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
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

// Update has apt read its lists. All of them first, which also brings those of the distribution that ours depend on;
// if anything fails there, each of our own files alone, strictly: what others have broken does not stop us, and a
// package that is then missing is named by who needs it.
func (a apt) Update(ctx context.Context, h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	// A mirror needs no list of the distribution, and where there is one, these servers may be out of reach.
	mirrored := len(sources) > 0 && !slices.ContainsFunc(sources, func(s source) bool { return !packages.IsMirror(h, s.uri) })
	all := error(nil)
	if !mirrored {
		if all = a.refresh(ctx, h); all == nil {
			return touch(h, files)
		}
	}
	// Those read for the same sources will do where the network fails: the way back needs no newer ones.
	old, err := a.Stale(h, slices.DeleteFunc(slices.Clone(files), func(f string) bool { return path.Ext(f) != ".sources" }))
	if err != nil {
		return err
	}
	for i, s := range sources {
		if i > 0 && sources[i-1].file == s.file {
			continue
		}
		err := a.refresh(ctx, h, "-o", "Dir::Etc::sourcelist="+s.file, "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0")
		if busy := (*packages.Locked)(nil); err != nil && (old || mirrored || errors.As(err, new(packages.Distrust)) || errors.As(err, &busy)) {
			return packages.Unread(h, err, s.uri, s.file)
		}
	}
	if _, read := youngest(h); read.IsZero() {
		return all // there is no list at all
	}
	return touch(h, files)
}

// refresh runs apt-get update, for which also one list that cannot be read is a failure. By itself it goes on with the
// old list of a repository that was tampered with, and exits with 0.
func (a apt) refresh(ctx context.Context, h host.Host, options ...string) error {
	argv := append([]string{"apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none"}, options...)
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		out, err := h.Do(ctx, argv...)
		if err == nil && sayErr().Match(out) { // apt before 2.1 knows no Error-Mode
			err = &host.CommandError{Argv: argv, Stderr: string(out), Cause: errors.New("not every list could be read")}
		}
		return out, err
	})
	return err
}

// touch gives lists that apt found to be current, and so left as they were, a time after that of our files.
func touch(h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	for _, s := range sources {
		name, _ := release(h, s)
		if name == "" {
			return fmt.Errorf("cannot find the list of %s %s: apt-get update did not bring it", s.uri, s.suite)
		}
		if err := packages.TouchList(h, name); err != nil {
			return err
		}
	}
	if name, _ := youngest(h); len(sources) == 0 && name != "" {
		return packages.TouchList(h, name)
	}
	return nil
}

// sayErr is how apt before 2.1, which knows no Error-Mode, names a list that it could not read.
var sayErr = pattern.Of(`(?m)^Err:`)
