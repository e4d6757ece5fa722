// SPDX-License-Identifier: Apache-2.0

package things

import (
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

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// fileState is a file's state, taken apart.
type fileState struct {
	exists   bool // false with via: a link whose target is missing
	mode     fs.FileMode
	uid, gid int
	sha      string // hex
	size     int    // bytes
	xattrs   map[string]string
	via      string // the link's target as written, if the name is a link
}

// State returns the canonical text: "0644 0:0 9f86d08… 5 user.note=x via ../lib/config.toml".
// Attributes and link targets are percent-encoded, so that they hold no blanks.
func (s fileState) State() converge.State {
	var words []string
	if s.exists {
		words = append(words, modeText(s.mode), s.owner(), s.sha, strconv.Itoa(s.size))
		for _, k := range slices.Sorted(maps.Keys(s.xattrs)) {
			words = append(words, url.QueryEscape(k)+"="+url.QueryEscape(s.xattrs[k]))
		}
	}

	if s.via != "" {
		words = append(words, "via", url.QueryEscape(s.via))
	}

	return converge.State(strings.Join(words, " "))
}

func (s fileState) owner() string { return fmt.Sprintf("%d:%d", s.uid, s.gid) }

func (s fileState) attributes() string { return fmt.Sprint(s.xattrs) }

// withBytes is the state with these bytes.
func (s fileState) withBytes(data []byte) fileState {
	sum := sha256.Sum256(data)
	s.sha = hex.EncodeToString(sum[:])
	s.size = len(data)
	return s
}

// withAttr is the state of an existing file with these attributes.
func (s fileState) withAttr(a host.Attr) fileState {
	s.exists = true
	s.mode = a.Mode
	s.uid = a.UID
	s.gid = a.GID
	s.xattrs = a.Xattrs
	return s
}

// entry is the file to write for this state; nil to remove it.
func (s fileState) entry(data []byte) *host.Entry {
	if !s.exists {
		return nil
	}

	xattrs := s.xattrs
	if xattrs == nil {
		xattrs = map[string]string{}
	}
	attr := host.Attr{
		Mode:   s.mode,
		UID:    s.uid,
		GID:    s.gid,
		Xattrs: xattrs,
	}

	return &host.Entry{Data: data, Attr: attr}
}

// matches reports whether an entry is in this state.
func (s fileState) matches(found *host.Entry) bool {
	switch {
	case found == nil:
		return s.State() == ""
	case found.Link != "":
		return found.Link == s.via
	}
	return fileState{}.withAttr(found.Attr).withBytes(found.Data).State() == s.State()
}

func parseFile(state converge.State) (fileState, error) {
	var s fileState
	words := strings.Fields(string(state))
	if n := len(words); n >= 2 && words[n-2] == "via" {
		target, err := url.QueryUnescape(words[n-1])
		if err != nil {
			return s, badState(state)
		}
		s.via = target
		words = words[:n-2]
	}

	if len(words) == 0 {
		return s, nil
	}
	if len(words) < 4 {
		return s, badState(state)
	}

	mode, modeErr := parseMode(words[0])
	_, ownerErr := fmt.Sscanf(words[1], "%d:%d", &s.uid, &s.gid)
	size, sizeErr := strconv.Atoi(words[3])
	s.exists = true
	s.mode = mode
	s.sha = words[2]
	s.size = size
	if errors.Join(modeErr, ownerErr, sizeErr) != nil || !isSHA256(s.sha) {
		return s, badState(state)
	}

	for _, word := range words[4:] {
		k, v, _ := strings.Cut(word, "=")
		key, keyErr := url.QueryUnescape(k)
		value, valueErr := url.QueryUnescape(v)
		if keyErr != nil || valueErr != nil {
			return s, badState(state)
		}
		if s.xattrs == nil {
			s.xattrs = map[string]string{}
		}
		s.xattrs[key] = value
	}

	return s, nil
}

func isSHA256(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// FileAttributes are the mode and the owner in a file's state; "" for a missing file.
func FileAttributes(state converge.State) string {
	words := strings.Fields(string(state))
	if len(words) < 4 {
		return ""
	}
	return words[0] + " " + words[1]
}

func badState(state converge.State) error {
	return fmt.Errorf("cannot read state %q: not one of a file", state)
}

// specialBits are the bits of a mode above the permissions, as Go and as chmod have them.
var specialBits = []struct {
	mode  fs.FileMode
	chmod uint32
}{
	{fs.ModeSetuid, 0o4000},
	{fs.ModeSetgid, 0o2000},
	{fs.ModeSticky, 0o1000},
}

// modeText writes permission bits as chmod takes them: 0644, 4755.
func modeText(m fs.FileMode) string {
	n := uint32(m.Perm())
	for _, bit := range specialBits {
		if m&bit.mode != 0 {
			n |= bit.chmod
		}
	}

	return fmt.Sprintf("%04o", n)
}

func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 12)
	m := fs.FileMode(n & 0o777)
	for _, bit := range specialBits {
		if uint32(n)&bit.chmod != 0 {
			m |= bit.mode
		}
	}

	return m, err
}
