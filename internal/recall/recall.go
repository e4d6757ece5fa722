// SPDX-License-Identifier: Apache-2.0

// Package recall remembers what was read out of a file for as long as the file stays the same, also
// from one run of gpuadm to the next, until the machine boots again.
package recall

import (
	"cmp"
	"encoding/json"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Memory holds what files have said. To unpack a module may take a second, and containerd --version
// takes 40 ms of processor time. The zero value is empty and usable; nil remembers nothing. A
// Memory is for one machine.
type Memory struct {
	mu       sync.Mutex
	seen     map[key]any // or json.RawMessage, from the record
	recalled bool        // Record was read
	news     bool        // Record lacks something
}

// A key names the contents of a file, and what was asked about them.
type key struct {
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	Ctime time.Time `json:"ctime"` // UTC
	About string    `json:"about,omitempty"`
}

// costly reports whether the record is faster to read than the file: true for compressed modules
// and for programs. Of a module that is not compressed, a few pages are read.
func (k key) costly() bool { return path.Ext(k.Path) != ".ko" }

// current says whether the file has not changed since.
func (k key) current(v host.View) bool {
	info, err := v.Stat(k.Path)
	return err == nil && info.Size == k.Size && info.Ctime.Equal(k.Ctime)
}

// Once returns what read finds out about a file, and calls read only if m does not know it of a
// file of this path, size and ctime. It remembers no errors. What is remembered of one file always
// has the same type T, which JSON can hold.
func Once[T any](m *Memory, v host.View, name string, read func(v host.View) (T, error)) (T, error) {
	return About(m, v, name, "", read)
}

// About is Once for a file that is asked several questions, each of which has an answer of its own.
func About[T any](
	m *Memory, v host.View, name, about string, read func(v host.View) (T, error),
) (T, error) {
	v = view.Machine(v) // a snapshot may have an older Stat than the content that is read now
	if m == nil {
		return read(v)
	}
	info, err := v.Stat(name)
	if err != nil {
		var none T
		return none, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	k := key{name, info.Size, info.Ctime.UTC(), about}
	if k.costly() {
		m.recall(v)
	}
	if said, ok := known[T](m, k); ok {
		return said, nil
	}

	said, err := read(v)
	if err == nil {
		m.keep(k, said)
	}
	return said, err
}

// known returns what m knows of a file. A text of the record becomes a T the first time.
func known[T any](m *Memory, k key) (said T, ok bool) {
	switch found := m.seen[k].(type) {
	case T:
		return found, true
	case json.RawMessage:
		if json.Unmarshal(found, &said) == nil {
			m.seen[k] = said
			return said, true
		}
	}
	return said, false
}

// keep remembers what a file says for this run, and whether the record lacks it.
func (m *Memory) keep(k key, said any) {
	if m.seen == nil {
		m.seen = map[key]any{}
	}
	m.seen[k] = said
	m.news = m.news || k.costly()
}

// Record is the file in which an apply keeps what it remembers of packed modules and programs,
// until the next boot. DKMS packs nvidia.ko like the distribution packs its own modules: 54 MB of
// zstd take 0.35 s to unpack, and of xz 2.7 s, each time that gpuadm runs.
// Source: docs/decisions/098.
const Record = "/run/gpuadm-modules.json"

// maxRecord is more than the modules of a hundred kernels take, in bytes.
const maxRecord = 1 << 20

// recorded is a file, and what it says.
type recorded struct {
	key
	Says json.RawMessage `json:"says"`
}

// recall reads the record of an apply of this boot. A record that another user could have written
// does not count.
func (m *Memory) recall(v host.View) {
	if m.recalled || !v.Live() {
		return
	}
	m.recalled = true

	info, err := v.Stat(Record)
	if err != nil || info.Size > maxRecord || v.Trusted(Record) != nil {
		return
	}
	text, err := v.ReadFile(Record)
	var all []recorded
	if err != nil || json.Unmarshal(text, &all) != nil {
		return
	}

	for _, r := range all {
		m.keep(r.key, r.Says)
	}
	m.news = false
}

// Keep writes the record, unless it has everything already. It leaves out a file that has changed
// since. If Keep cannot write the record, the next run reads the files again.
func (m *Memory) Keep(h host.Host) {
	if m == nil || !h.Live() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.news {
		return
	}
	m.news = false

	all := []recorded{}
	for k, said := range m.seen {
		text, err := json.Marshal(said)
		if err == nil && k.costly() && k.current(h) {
			all = append(all, recorded{k, text})
		}
	}

	sorting.By(all, func(a, b recorded) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.About, b.About))
	})

	text, err := json.Marshal(all)
	if err == nil && len(text) < maxRecord {
		_ = h.WriteFile(Record, append(text, '\n'), host.Attr{Mode: 0o644})
	}
}
