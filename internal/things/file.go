// SPDX-License-Identifier: Apache-2.0

// Package things holds the kinds of parts that a machine is made of, one kind a file; keyring.go
// and sign.go read and write OpenPGP. Each kind can be looked at and made; the engine,
// internal/converge, decides which and when.
package things

import (
	"context"
	"fmt"
	"io/fs"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A FileThing is a regular file, or a link, which is kept when its target is written.
// Its state is "MODE UID:GID SHA256 SIZE", then its extended attributes, then "via TARGET" if the
// name is a link.
type FileThing struct {
	name     string
	merge    MergeFunc
	form     string
	validate ValidateFunc

	last lastLook
	mu   sync.Mutex
	seen map[string][]byte // bytes by SHA-256
}

// A MergeFunc takes the change from before to after out of found, key by key. left names gpuadm's
// parts that stay, because they were changed outside gpuadm since. It fails only where it cannot
// separate the parts. nil bytes mean no file.
type MergeFunc func(before, after, found []byte) (rest []byte, left []string, err error)

// A ValidateFunc says what is wrong with the bytes that a file will have, before they are written.
type ValidateFunc func(ctx context.Context, v host.View, before, after []byte) error

// Whole is the form of files that gpuadm writes as a whole: no merger takes an edit out of them.
const Whole = "whole"

// NewFile names a file. merge may be nil: then gpuadm cannot tell its own part of the file apart.
func NewFile(name string, merge MergeFunc) *FileThing {
	f := &FileThing{name: name, merge: merge, seen: map[string][]byte{}}
	if merge == nil {
		f.form = Whole
	}
	return f
}

// Validated sets the function that validates each change to the file.
func (f *FileThing) Validated(by ValidateFunc) *FileThing {
	f.validate = by
	return f
}

// Formed names the form of the file's bytes, for the journal: by the form undo finds the same
// merger.
func (f *FileThing) Formed(form string) *FileThing {
	f.form = form
	return f
}

// Exact wants a file with these bytes and this mode, owned by root.
func Exact(name string, data []byte, mode fs.FileMode, why string) converge.Want {
	f := NewFile(name, nil)
	to := func(found converge.State) (converge.State, error) {
		s, err := f.parse(found)
		if err != nil {
			return "", err
		}
		s.exists = true
		s.mode = mode
		s.uid = 0
		s.gid = 0
		return f.stateWith(s, data), nil
	}

	return converge.Want{Thing: f, Why: why, To: to}
}

// Edited wants a file with the bytes that edit makes of those found; nil is a missing file. Mode
// and owner stay; a new file gets mode 0644 and belongs to root. edit is pure and idempotent.
func Edited(f *FileThing, edit func([]byte) ([]byte, error), why string) converge.Want {
	to := func(found converge.State) (converge.State, error) {
		s, err := f.parse(found)
		if err != nil {
			return "", err
		}
		var data []byte
		if s.exists {
			data, err = f.bytes(s)
			if err != nil {
				return "", err
			}
		}

		edited, err := edit(data)
		if err != nil || edited == nil && !s.exists {
			return found, err
		}
		if !s.exists {
			s.exists = true
			s.mode = 0o644
		}
		return f.stateWith(s, edited), nil
	}

	return converge.Want{Thing: f, Why: why, To: to}
}

// parse takes a state apart; it refuses a link to /dev/null, which gpuadm does not write to.
func (f *FileThing) parse(found converge.State) (fileState, error) {
	if found == maskedFile {
		return fileState{}, fmt.Errorf("cannot use %s as a file: it is a link to %s", f.name, nowhere)
	}
	return parseFile(found)
}

// Ref is the file's path and form.
func (f *FileThing) Ref() converge.Ref {
	return converge.Ref{Kind: "file", Name: f.name, Form: f.form}
}

// Look reads the whole file.
func (f *FileThing) Look(_ context.Context, v host.View) (converge.State, error) {
	return f.last.keep(f.look(v))
}

func (f *FileThing) look(v host.View) (converge.State, error) {
	info, err := v.Lstat(f.name)
	if host.NotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}

	var s fileState
	if info.Mode&fs.ModeSymlink != 0 {
		s.via, err = v.Readlink(f.name)
		if err != nil {
			return "", err
		}
		if leadsNowhere(f.name, s.via) {
			return maskedFile, nil
		}
		target, err := v.Resolve(f.name)
		if host.NotExist(err) {
			return "", f.intoMissingFolder(s.via)
		}
		if err == nil {
			info, err = v.Lstat(target)
		}
		if host.NotExist(err) {
			return s.State(), nil
		}
		if err != nil {
			return "", err
		}
	}

	if !info.Mode.IsRegular() {
		return "", fmt.Errorf("cannot use %s as a file: it is %s", f.name, host.TypeName(info.Mode))
	}
	data, err := v.ReadFile(f.name)
	if err != nil {
		return "", err
	}

	return f.stateWith(s.withAttr(info.Attr()), data), nil
}

// intoMissingFolder says that the file is a link into a folder that is not there: no program can
// write the file then.
func (f *FileThing) intoMissingFolder(via string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot use %s as a file: it is a link to %s, and the folder of that is not there", f.name, via),
		Try:  []string{"make the folder, or remove the link: rm " + host.ShellWord(f.name)},
		Err:  fs.ErrNotExist,
	}
}

// Make writes the state's bytes with its owner and mode, or removes the file. It refuses where the
// file changed since the last look.
func (f *FileThing) Make(ctx context.Context, h host.Host, to converge.State) error {
	want, err := parseFile(to)
	if err != nil {
		return err
	}
	data, err := f.Bytes(h, to)
	if err != nil {
		return err
	}
	state, err := f.last.found(ctx, h, f)
	if err != nil {
		return err
	}
	found, err := parseFile(state)
	if err != nil {
		return err
	}

	if want.via != "" && want.via != found.via {
		if err := f.last.replace(h, f.name, &host.Entry{Link: want.via}, found.matches); err != nil {
			return err
		}
		state, err = f.look(h)
		if err != nil || state == to {
			return err
		}
		found, err = parseFile(state)
		if err != nil {
			return err
		}
	}

	target := f.name
	if want.via != "" { // the link stays, and its target is replaced
		found.via = ""
		target, err = h.Resolve(f.name)
		if err != nil {
			return err
		}
	}

	return f.last.replace(h, target, want.entry(data), found.matches)
}

// Bytes returns the bytes a state names, from memory or from the engine's blobs.
func (f *FileThing) Bytes(v host.View, state converge.State) ([]byte, error) {
	s, err := parseFile(state)
	if err != nil || !s.exists {
		return nil, err
	}
	if data, err := f.bytes(s); err == nil {
		return data, nil
	}

	data, err := converge.Blob(v, s.sha)
	if err != nil {
		return nil, err
	}
	f.remember(s.sha, data)

	return data, nil
}

// Digest is the SHA-256 of the bytes that a state names.
func (f *FileThing) Digest(state converge.State) string {
	s, _ := parseFile(state)
	return s.sha
}

// Validate has the program that will read the file validate the change.
func (f *FileThing) Validate(ctx context.Context, v host.View, before, after converge.State) error {
	if f.validate == nil {
		return nil
	}

	old, err := f.Bytes(v, before)
	if err != nil {
		return err
	}
	data, err := f.Bytes(v, after)
	if err != nil {
		return err
	}

	return f.validate(ctx, v, old, data)
}

// stateWith is the state with these bytes, which it remembers.
func (f *FileThing) stateWith(s fileState, data []byte) converge.State {
	s = s.withBytes(data)
	f.remember(s.sha, data)
	return s.State()
}

func (f *FileThing) remember(sha string, data []byte) {
	if data == nil {
		data = []byte{}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[sha] = data
}

// bytes returns the bytes of a state from memory.
func (f *FileThing) bytes(s fileState) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if data, ok := f.seen[s.sha]; ok {
		return data, nil
	}
	return nil, fmt.Errorf("internal error: the bytes of %s with digest %.12s are not at hand", f.name, s.sha)
}
