// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// update has apt read its lists. All of them first, which also brings those of the distribution that ours depend on;
// if anything fails there, each of our own files alone, strictly: what others have broken does not stop us, and a
// package that is then missing is named by who needs it.
func (a apt) update(ctx context.Context, h host.Host, files []string) error {
	if err := a.refresh(ctx, h); err == nil {
		return touch(h, files)
	}
	// Those read for the same sources will do where the network fails: the way back needs no newer ones.
	old, err := a.stale(h, slices.DeleteFunc(slices.Clone(files), func(f string) bool { return path.Ext(f) != ".sources" }))
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := h.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		sources := parseSources(f, data, architecture(h))
		if len(sources) == 0 {
			continue // it says versions
		}
		err = a.refresh(ctx, h, "-o", "Dir::Etc::sourcelist="+f, "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0")
		if err != nil && (old || !unreachable(err)) {
			return distrusted(err, f, sources)
		}
	}
	return touch(h, files)
}

// refresh runs apt-get update, for which also one list that cannot be read is a failure. By itself it goes on with the
// old list of a repository that was tampered with, and exits with 0.
func (a apt) refresh(ctx context.Context, h host.Host, options ...string) error {
	argv := append([]string{"apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none"}, options...)
	return a.again(ctx, h, func(time.Duration) ([]byte, error) {
		out, err := h.Do(ctx, argv...)
		if err == nil && sayErr().Match(out) { // apt before 2.1 knows no Error-Mode
			err = &host.CommandError{Argv: argv, Stderr: string(out), Cause: errors.New("not every list could be read")}
		}
		return out, err
	})
}

// touch gives lists that apt found to be current, and so left as they were, a time after that of our files.
func touch(h host.Host, files []string) error {
	configured := 0
	for _, f := range files {
		data, err := h.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		for _, s := range parseSources(f, data, architecture(h)) {
			configured++
			name, _ := release(h, s)
			if name == "" {
				return fmt.Errorf("cannot find the list of %s %s: apt-get update did not bring it", s.uri, s.suite)
			}
			if err := touchList(h, name); err != nil {
				return err
			}
		}
	}
	if name, _ := youngest(h); configured == 0 && name != "" {
		return touchList(h, name)
	}
	return nil
}

// touchList gives a file another ctime: attributes there and back, since those that are as they should be are left alone. Its
// own time stays: packagers ask the server for what is newer than that.
func touchList(h host.Host, name string) error {
	i, err := h.Stat(name)
	if err != nil {
		return err
	}
	for _, mode := range []fs.FileMode{i.Mode.Perm() ^ 0o100, i.Mode.Perm()} {
		attr := i.Attr()
		attr.Mode = mode
		if err := h.SetAttr(name, attr); err != nil {
			return err
		}
	}
	return nil
}

var (
	sayTrouble = pattern.Of(`(?m)^[EW]: .*$`)
	sayErr     = pattern.Of(`(?m)^Err:`)
	sayNoKey   = pattern.Of(`NO_PUBKEY ([0-9A-F]+)`)
	sayBadSig  = pattern.Of(`BADSIG|Clearsigned file isn't valid|NOSPLIT`)
	sayOldKey  = pattern.Of(`EXPKEYSIG ([0-9A-F]+)|REVKEYSIG ([0-9A-F]+)`)
	sayExpired = pattern.Of(`Release file for (\S+) is expired(?: \(invalid since ([^)]*)\))?`)
	sayTooSoon = pattern.Of(`is not valid yet`)
	sayHash    = pattern.Of(`Hash Sum mismatch|File has unexpected size|Hashes of expected file`)
	sayUnsaid  = pattern.Of(`is not signed|does not have a Release file|no longer has a Release file`)
)

// unreachable says that nothing came: neither the network nor a mirror that is gone makes what was read before untrue.
func unreachable(err error) bool {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return false
	}
	for _, say := range []func() *regexp.Regexp{sayNoKey, sayBadSig, sayOldKey, sayExpired, sayTooSoon, sayHash, sayLock} {
		if say().MatchString(failed.Stderr) {
			return false
		}
	}
	return !strings.Contains(failed.Stderr, "is not signed") &&
		(strings.Contains(failed.Stderr, "Failed to fetch") || strings.Contains(failed.Stderr, "have a Release file") || strings.Contains(failed.Stderr, "has a Release file"))
}

// aptSettings is where apt is told of a proxy.
const aptSettings = "apt's own settings: apt-config dump Acquire::http::Proxy"

// distrusted says why apt does not take the lists of a source of ours, and what would mend it.
func distrusted(err error, file string, sources []source) error {
	failed := (*host.CommandError)(nil)
	if busy := (*locked)(nil); errors.As(err, &busy) || !errors.As(err, &failed) {
		return err
	}
	var where, keys []string
	for _, s := range sources {
		where, keys = append(where, s.uri), append(keys, s.signedBy...)
	}
	said := failed.Stderr
	t := &converge.Trouble{Err: err, Because: sayTrouble().FindAllString(said, 4)}
	if len(t.Because) == 0 {
		t.Because = tail(said, 6)
	}
	say := func(why string, try ...string) {
		t.What = fmt.Sprintf("cannot read repository %s (%s): %s", strings.Join(where, ", "), file, why)
		t.Try = try
	}
	keyring := strings.Join(keys, ", ")
	if keyring == "" {
		keyring = "apt's trusted keys"
	}
	switch {
	case sayNoKey().MatchString(said):
		say(fmt.Sprintf("it is signed with key %s, which is not in %s", sayNoKey().FindStringSubmatch(said)[1], keyring),
			"look up the fingerprint at the vendor's, and give that key in the spec if it has changed", "see that nobody has changed the repository")
	case sayBadSig().MatchString(said):
		say("it was changed after it was signed", "see that no proxy rewrites what passes through it, then run the same command again", "if it is a mirror: mirror it again")
	case sayOldKey().MatchString(said):
		say("the key that it is signed with has expired or was revoked", "get the vendor's current key")
	case sayExpired().MatchString(said):
		say("what it says of itself has expired, so it may be an old copy", "if it is a mirror: mirror it again", "see that this machine's clock is right: date")
	case sayTooSoon().MatchString(said):
		say("what it says of itself lies in the future", "see that this machine's clock is right: date")
	case sayHash().MatchString(said):
		say("its files do not fit together, as while it is being published", "run the same command again in some minutes", "if it is a mirror: mirror it again")
	case sayUnsaid().MatchString(said):
		say("it is not signed, or not there", "see that the address is right: "+strings.Join(where, ", "), "if it is a mirror: mirror its signature too (InRelease, or Release and Release.gpg)")
	case strings.Contains(said, "Failed to fetch"):
		why, try := unreached(said, aptSettings, strings.Join(where, ", "))
		say(why, try...)
	default:
		say(firstWords(said, err), "apt-get update, which has more")
	}
	return t
}
