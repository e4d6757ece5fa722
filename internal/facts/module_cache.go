// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// ModuleCache remembers the contents of module files and the versions of programs, while size and
// ctime of the files stay: to unpack a module may take a second, and containerd --version takes 40
// ms of processor time. nil remembers nothing.
type ModuleCache struct {
	mu       sync.Mutex
	seen     map[moduleKey]ModuleFile
	recalled bool // moduleRecord was read
	news     bool // the record lacks something
}

// Read is ReadModule, which reads each file once.
func (c *ModuleCache) Read(v host.View, name string) (ModuleFile, error) {
	v = view.Machine(v) // a snapshot may have an older Stat than the content that is read now
	info, err := v.Stat(name)
	if err != nil {
		return ModuleFile{}, err
	}

	key := moduleKey{name, info.Size, info.Ctime.UTC()}
	return c.once(v, key, func() (ModuleFile, error) { return ReadModule(v, name) })
}

// once reads a file, unless it is known with this size and ctime.
func (c *ModuleCache) once(v host.View, key moduleKey, read func() (ModuleFile, error)) (ModuleFile, error) {
	if c == nil {
		return read()
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if key.costly() {
		c.recall(v)
	}
	if m, ok := c.seen[key]; ok {
		return m, nil
	}

	m, err := read()
	if err == nil {
		c.keep(key, m)
	}
	return m, err
}

// Equal is always true: comparisons of facts ignore the cache.
func (c *ModuleCache) Equal(*ModuleCache) bool { return true }

type moduleKey struct {
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	Ctime time.Time `json:"ctime"` // UTC
}

// costly reports whether the record is faster to read than the file: true for compressed modules
// and for programs. Of a module that is not compressed, a few pages are read.
func (k moduleKey) costly() bool { return path.Ext(k.Path) != ".ko" }

// moduleRecord is the file in which an apply keeps the cache of packed modules and programs, until
// the next boot. DKMS packs nvidia.ko like the distribution packs its own modules: 54 MB of zstd
// take 0.35 s to unpack, and of xz 2.7 s, each time that gpuadm runs. Source: docs/decisions/098.
const moduleRecord = "/run/gpuadm-modules.json"

// maxRecord is more than the modules of a hundred kernels take, in bytes.
const maxRecord = 1 << 20

// recorded is the file of a packed module or of a program, and what it says.
type recorded struct {
	moduleKey
	Says ModuleFile `json:"says"`
}

// recall reads the record of an apply of this boot. A record that another user could have written
// does not count.
func (c *ModuleCache) recall(v host.View) {
	if c.recalled || !v.Live() {
		return
	}
	c.recalled = true

	info, err := v.Stat(moduleRecord)
	if err != nil || info.Size > maxRecord || v.Trusted(moduleRecord) != nil {
		return
	}
	text, err := v.ReadFile(moduleRecord)
	var all []recorded
	if err != nil || json.Unmarshal(text, &all) != nil {
		return
	}

	for _, m := range all {
		if m.Says.Path == m.Path {
			c.keep(m.moduleKey, m.Says)
		}
	}
	c.news = false
}

// keep remembers a module for this run, and whether the record lacks it.
func (c *ModuleCache) keep(key moduleKey, m ModuleFile) {
	if c.seen == nil {
		c.seen = map[moduleKey]ModuleFile{}
	}
	c.seen[key] = m
	c.news = c.news || key.costly()
}

// Keep writes the record, unless it has everything already. It leaves out a file that has changed
// since. If Keep cannot write the record, the next run reads the files again.
func (c *Cache) Keep(h host.Host) {
	m := c.modules
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
	for key, says := range m.seen {
		if key.costly() && key.current(h) {
			all = append(all, recorded{key, says})
		}
	}
	slices.SortFunc(all, func(a, b recorded) int { return strings.Compare(a.Path, b.Path) })

	text, err := json.Marshal(all)
	if err == nil && len(text) < maxRecord {
		_ = h.WriteFile(moduleRecord, append(text, '\n'), host.Attr{Mode: 0o644})
	}
}

// current says whether the file has not changed since.
func (k moduleKey) current(v host.View) bool {
	info, err := v.Stat(k.Path)
	return err == nil && info.Size == k.Size && info.Ctime.Equal(k.Ctime)
}
