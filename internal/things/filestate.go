// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// fileState is a file's state, taken apart.
type fileState struct {
	there    bool // false with via: a link whose target is missing
	mode     fs.FileMode
	uid, gid int
	sha      string
	size     int
	xattrs   map[string]string
	via      string // the link's target as written, if the name is a link
}

// State returns the canonical text: "0644 0:0 9f86d08… 5 user.note=x via ../lib/config.toml".
// Attributes and link targets are percent-encoded, so that they hold no blanks.
func (s fileState) State() converge.State {
	var words []string
	if s.there {
		words = append(words, modeText(s.mode), fmt.Sprintf("%d:%d", s.uid, s.gid), s.sha, strconv.Itoa(s.size))
		for _, k := range slices.Sorted(maps.Keys(s.xattrs)) {
			words = append(words, url.QueryEscape(k)+"="+url.QueryEscape(s.xattrs[k]))
		}
	}
	if s.via != "" {
		words = append(words, "via", url.QueryEscape(s.via))
	}
	return converge.State(strings.Join(words, " "))
}

// withBytes is the state with these bytes.
func (s fileState) withBytes(data []byte) fileState {
	sum := sha256.Sum256(data)
	s.sha, s.size = hex.EncodeToString(sum[:]), len(data)
	return s
}

// withAttr is the state of a file that is there with these attributes.
func (s fileState) withAttr(a host.Attr) fileState {
	s.there, s.mode, s.uid, s.gid, s.xattrs = true, a.Mode, a.UID, a.GID, a.Xattrs
	return s
}

// is says whether an entry is in this state.
func (s fileState) is(found *host.Entry) bool {
	switch {
	case found == nil:
		return s.State() == ""
	case found.Link != "":
		return found.Link == s.via
	}
	return fileState{}.withAttr(found.Attr).withBytes(found.Data).State() == s.State()
}

func parseFile(state converge.State) (s fileState, err error) {
	words := strings.Fields(string(state))
	if n := len(words); n >= 2 && words[n-2] == "via" {
		if s.via, err = url.QueryUnescape(words[n-1]); err != nil {
			return s, badState(state)
		}
		words = words[:n-2]
	}
	if len(words) == 0 {
		return s, nil
	}
	if len(words) < 4 {
		return s, badState(state)
	}
	s.there = true
	mode, err1 := parseMode(words[0])
	_, err2 := fmt.Sscanf(words[1], "%d:%d", &s.uid, &s.gid)
	size, err3 := strconv.Atoi(words[3])
	s.mode, s.sha, s.size = mode, words[2], size
	if err1 != nil || err2 != nil || err3 != nil || len(s.sha) != 64 || strings.Trim(s.sha, "0123456789abcdef") != "" {
		return s, badState(state)
	}
	for _, w := range words[4:] {
		k, v, _ := strings.Cut(w, "=")
		k, err1 := url.QueryUnescape(k)
		v, err2 := url.QueryUnescape(v)
		if err1 != nil || err2 != nil {
			return s, badState(state)
		}
		if s.xattrs == nil {
			s.xattrs = map[string]string{}
		}
		s.xattrs[k] = v
	}
	return s, nil
}

// FileAttributes are the mode and the owner in a file's state; "" for a file that is not there.
func FileAttributes(state converge.State) string {
	if words := strings.Fields(string(state)); len(words) >= 4 {
		return words[0] + " " + words[1]
	}
	return ""
}

func badState(state converge.State) error {
	return fmt.Errorf("cannot read state %q: not one of a file", state)
}

// modeText writes permission bits as chmod takes them: 0644, 4755.
func modeText(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, v := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			n |= v
		}
	}
	return fmt.Sprintf("%04o", n)
}

func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 12)
	m := fs.FileMode(n & 0o777)
	for bit, v := range map[fs.FileMode]uint64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if n&v != 0 {
			m |= bit
		}
	}
	return m, err
}

// TakeOut takes gpuadm's change out of a file that was changed outside gpuadm since: bytes, mode,
// owner, attributes and link, each independently.
func (f *FileThing) TakeOut(v host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	var s [3]fileState
	for i, state := range []converge.State{found, before, after} {
		if s[i], err = parseFile(state); err != nil {
			return "", nil, err
		}
	}
	is, was, became := s[0], s[1], s[2]
	switch {
	case before == after, !is.there: // a link whose target is missing
		return found, nil, nil
	case !became.there && is.sha != was.sha:
		return found, []string{f.name + " is there, gpuadm had removed it"}, nil
	case !became.there:
		return found, nil, nil
	case is.sha == became.sha && !was.there:
		return before, nil, nil
	case is.sha == became.sha:
		is.sha, is.size = was.sha, was.size
	case is.sha != was.sha && was.sha != became.sha:
		var data []byte
		if data, left, err = f.merged(v, found, before, after); err != nil {
			return "", nil, fmt.Errorf("cannot take gpuadm's part out of %s: %w", f.name, err)
		}
		if !was.there && len(bytes.TrimSpace(data)) == 0 {
			return before, left, nil
		}
		if is, err = parseFile(f.with(is, data)); err != nil {
			return "", nil, err
		}
	}
	if !was.there {
		return is.State(), left, nil
	}
	for _, p := range []struct {
		what            string
		is, was, became string
		back            func()
	}{
		{"mode", modeText(is.mode), modeText(was.mode), modeText(became.mode), func() { is.mode = was.mode }},
		{"owner", is.owner(), was.owner(), became.owner(), func() { is.uid, is.gid = was.uid, was.gid }},
		{"attributes", is.attributes(), was.attributes(), became.attributes(), func() { is.xattrs = was.xattrs }},
		{"link", is.via, was.via, became.via, func() { is.via = was.via }},
	} {
		switch {
		case p.is == p.became:
			p.back()
		case p.is != p.was && p.was != p.became:
			left = append(left, fmt.Sprintf("%s of %s is %q, gpuadm had set %q", p.what, f.name, p.is, p.became))
		}
	}
	return is.State(), left, nil
}

func (f *FileThing) merged(v host.View, found, before, after converge.State) (rest []byte, left []string, err error) {
	if f.merge == nil {
		return nil, nil, errors.New("it was changed outside gpuadm since, and is no file whose parts gpuadm can tell apart")
	}
	var texts [3][]byte
	for i, s := range []converge.State{before, after, found} {
		if texts[i], err = f.Bytes(v, s); err != nil {
			return nil, nil, err
		}
	}
	return f.merge(texts[0], texts[1], texts[2])
}

func (s fileState) owner() string { return fmt.Sprintf("%d:%d", s.uid, s.gid) }

func (s fileState) attributes() string { return fmt.Sprint(s.xattrs) }

// lastLook remembers what a thing's last look found: its state, or a digest of its bytes. Make
// replaces the file only if it still is as found, so that no edit is lost that another process
// makes between the look and the rename.
type lastLook struct {
	mu     sync.Mutex
	looked bool
	state  converge.State
}

// keep remembers what a look returns.
func (l *lastLook) keep(s converge.State, err error) (converge.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked, l.state = err == nil, s
	return s, err
}

// found is what the last look kept. If nothing has looked since the last replace, found looks now;
// the engine always looks before a make.
func (l *lastLook) found(ctx context.Context, h host.Host, t converge.Thing) (converge.State, error) {
	l.mu.Lock()
	looked := l.looked
	l.mu.Unlock()
	if !looked {
		if _, err := t.Look(ctx, h); err != nil {
			return "", err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, nil
}

// replace puts a file or a link under a name, or removes it for nil, if what is there is as
// expected.
func (l *lastLook) replace(h host.Host, name string, with *host.Entry, expected func(found *host.Entry) bool) error {
	err := h.Replace(name, with, expected)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.looked = false
	}
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{What: err.Error(), Try: []string{"run the same command again"}, Err: err}
	}
	return err
}
