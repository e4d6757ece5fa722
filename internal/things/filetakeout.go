// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// TakeOut takes our change out of a file that was changed outside gpuadm since: its bytes, mode, owner, attributes and link each by
// themselves.
func (f *FileThing) TakeOut(v host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	var s [3]fileState
	for i, state := range []converge.State{found, before, after} {
		if s[i], err = parseFile(state); err != nil {
			return "", nil, err
		}
	}
	is, was, became := s[0], s[1], s[2]
	switch {
	case before == after, !is.there: // a link that leads nowhere
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
