// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

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
