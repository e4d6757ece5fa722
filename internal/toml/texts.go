// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"slices"
	"sync"
)

// Texts remembers the values of the texts that were read last. One configuration is asked for many
// times in a run: as found, as it was before gpuadm's edit, and as the edit makes it; by the facts,
// the plan of the run and that of a stage at its turn, and the proof. Values that it returns are
// shared, and no caller changes them. nil remembers nothing.
type Texts struct {
	mu   sync.Mutex
	last []*text // the newest last
}

// text is a text that was read, or that is being read.
type text struct {
	data []byte
	read sync.WaitGroup // until tree and err are known
	tree map[string]any
	err  error
}

// mostTexts is how many texts are remembered: a configuration that imports more files is parsed as
// if there were no Texts.
const mostTexts = 12

// Values is the function of that name, which parses each text once.
func (t *Texts) Values(data []byte) (map[string]any, error) {
	return t.Once(data, func() (map[string]any, error) { return Values(data) })
}

// Once returns what read returned for a text without an error, and calls it if that is not
// remembered. Callers that ask for the same text at the same time share one call; others do not
// wait for it: the call may ask a program.
func (t *Texts) Once(data []byte, read func() (map[string]any, error)) (map[string]any, error) {
	if t == nil {
		return read()
	}
	known, isNew := t.entry(data)
	if !isNew {
		known.read.Wait()
		return known.tree, known.err
	}

	known.tree, known.err = read()
	known.read.Done()
	if known.err != nil {
		t.forget(known)
	}
	return known.tree, known.err
}

// entry is the entry of a text. Where it is new, the caller reads the text.
func (t *Texts) entry(data []byte) (entry *text, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	for _, known := range t.last {
		if bytes.Equal(known.data, data) {
			return known, false
		}
	}

	entry = &text{data: data}
	entry.read.Add(1)
	tooMany := max(0, len(t.last)+1-mostTexts)
	t.last = append(t.last[tooMany:], entry)
	return entry, true
}

// forget drops an entry, so that the next caller reads its text again.
func (t *Texts) forget(entry *text) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = slices.DeleteFunc(t.last, func(other *text) bool { return other == entry })
}

// Equal has comparisons of facts pass over what is remembered.
func (t *Texts) Equal(*Texts) bool { return true }
