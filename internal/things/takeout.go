// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// TakeOut takes gpuadm's change out of a file that was changed outside gpuadm since: bytes, mode,
// owner, attributes and link, each independently.
func (f *FileThing) TakeOut(
	v host.View, found, before, after converge.State,
) (converge.State, []string, error) {
	var states []fileState
	for _, state := range []converge.State{found, before, after} {
		s, err := parseFile(state)
		if err != nil {
			return "", nil, err
		}
		states = append(states, s)
	}

	now := states[0]
	was := states[1]
	made := states[2]

	if before == after || !now.exists { // missing, or a link whose target is missing
		return found, nil, nil
	}
	if !made.exists {
		if now.sha == was.sha {
			return found, nil, nil
		}
		return found, []string{f.name + " is there, gpuadm had removed it"}, nil
	}

	var left []string
	switch {
	case now.sha == made.sha && !was.exists:
		return before, nil, nil

	case now.sha == made.sha:
		now.sha = was.sha
		now.size = was.size

	case now.sha != was.sha && was.sha != made.sha:
		data, lines, err := f.takeOutBytes(v, found, before, after)
		if err != nil {
			return "", nil, fmt.Errorf("cannot take gpuadm's part out of %s: %w", f.name, err)
		}
		left = lines
		if !was.exists && len(bytes.TrimSpace(data)) == 0 {
			return before, left, nil
		}
		now = now.withBytes(data)
		f.remember(now.sha, data)
	}

	if was.exists {
		left = append(left, f.takeOutAttributes(&now, was, made)...)
	}

	return now.State(), left, nil
}

// takeOutBytes has the file's merger take gpuadm's part out of the bytes found.
func (f *FileThing) takeOutBytes(v host.View, found, before, after converge.State) ([]byte, []string, error) {
	if f.merge == nil {
		return nil, nil, errors.New("it was changed outside gpuadm since, and is not a file whose parts gpuadm can tell apart")
	}

	var texts [][]byte
	for _, s := range []converge.State{before, after, found} {
		text, err := f.Bytes(v, s)
		if err != nil {
			return nil, nil, err
		}
		texts = append(texts, text)
	}

	return f.merge(texts[0], texts[1], texts[2])
}

// takeOutAttributes reverts those attributes of now that still are as gpuadm made them. It returns
// a sentence for each that was changed outside gpuadm since.
func (f *FileThing) takeOutAttributes(now *fileState, was, made fileState) []string {
	attributes := []struct {
		what           string
		now, was, made string
		revert         func()
	}{
		{"mode", modeText(now.mode), modeText(was.mode), modeText(made.mode), func() { now.mode = was.mode }},
		{"owner", now.owner(), was.owner(), made.owner(), func() { now.uid, now.gid = was.uid, was.gid }},
		{"attributes", now.attributes(), was.attributes(), made.attributes(), func() {
			now.xattrs = was.xattrs
		}},
		{"link", now.via, was.via, made.via, func() { now.via = was.via }},
	}

	var left []string
	for _, a := range attributes {
		switch {
		case a.now == a.made:
			a.revert()
		case a.now != a.was && a.was != a.made:
			changed := fmt.Sprintf("%s of %s is %q, gpuadm had set %q", a.what, f.name, a.now, a.made)
			left = append(left, changed)
		}
	}

	return left
}
