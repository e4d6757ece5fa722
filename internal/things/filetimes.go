// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"path"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// startMargin is how much later than its files' last change a daemon must have started: the coarse
// clock that stamps files is up to one tick behind, which is 10 ms at HZ=100.
const startMargin = 10 * time.Millisecond

// Rewritten reports whether a file that a daemon reads may have new content since the daemon
// started. Unlike Outdated it ignores chmod and restorecon, which change only a file's ctime. A
// file that was moved into place keeps an old mtime; then its folder's mtime is new. Sources:
// inode(7), st_ctime and st_mtime;
// https://pubs.opengroup.org/onlinepubs/9799919799/functions/rename.html.
func Rewritten(ctx context.Context, v host.View, unit string, files []string) (bool, error) {
	u, err := v.Unit(ctx, unit)
	if err != nil {
		return false, err
	}
	return rewrittenSince(v, u, slices.Concat(files, u.Files))
}

// rewrittenSince is Rewritten for a process that has started as a unit's.
func rewrittenSince(v host.View, u host.Unit, files []string) (bool, error) {
	rewritten := func(info host.Info, name string) bool {
		if after(info.Mtime, v.Now(), u) {
			return true
		}
		folder, err := v.Stat(path.Dir(name))
		return err == nil && after(info.Ctime, v.Now(), u) && after(folder.Mtime, v.Now(), u)
	}

	for _, name := range files {
		late, err := anyInfo(v, name, rewritten)
		if late || err != nil {
			return late, err
		}
	}

	return false, nil
}

// anyInfo reports whether is holds for a file, for a folder or one of its entries, or, if the name
// is missing, for the nearest folder; of a link that leads nowhere also for its target's. A
// folder's own time shows that files in it were made, removed or replaced.
func anyInfo(v host.View, name string, is func(info host.Info, name string) bool) (bool, error) {
	names := []string{name}
	info, err := v.Stat(name)
	switch {
	case host.NotExist(err):
		names = []string{NearestFolder(v, name)}
		if target := targetOf(v, name); target != "" {
			names = append(names, NearestFolder(v, target))
		}
	case err != nil:
		return false, err
	case info.Mode.IsDir():
		entries, err := v.ReadDir(name)
		if err != nil {
			return false, err
		}
		for _, entry := range entries {
			names = append(names, path.Join(name, entry))
		}
	}

	for _, n := range names {
		info, err := v.Stat(n)
		if host.NotExist(err) {
			continue // a link whose target is missing
		}
		if err != nil {
			return false, err
		}
		if is(info, n) {
			return true, nil
		}
	}

	return false, nil
}

// targetOf is where a link leads; "" if name is none.
func targetOf(v host.View, name string) string {
	target, err := v.Readlink(name)
	if err != nil {
		return ""
	}
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return target
}

// NearestFolder is the closest folder above a name that exists.
func NearestFolder(v host.View, name string) string {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		info, err := v.Stat(dir)
		if err == nil && info.Mode.IsDir() {
			return dir
		}
	}

	return "/"
}

// after reports whether a file changed after the unit started. The wall clock stamps files, and NTP
// may step that clock in either direction; for starts the monotonic clock is known too. So the file
// is early only if both clocks say so. A time in the future comes from a clock that was set back
// later. Such a file counts as early: else the daemon would be older than the file after each
// restart.
func after(changed, now time.Time, u host.Unit) bool {
	if changed.After(now) {
		return false
	}

	age := now.Sub(changed)
	running := u.Uptime - u.Since
	byMonotonicClock := age < running+startMargin && running > 0
	return byMonotonicClock || changed.Add(startMargin).After(u.Started)
}

// lastChange is when one of the files, or its folder, changed last.
func lastChange(v host.View, files []string) time.Time {
	var last time.Time
	for _, name := range files {
		for _, n := range []string{name, path.Dir(name)} {
			info, err := v.Stat(n)
			if err == nil && info.Ctime.After(last) {
				last = info.Ctime
			}
		}
	}

	return last
}
