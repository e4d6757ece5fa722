// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// moduleRecord is where an apply keeps what packed modules say, until the next boot. DKMS packs nvidia.ko as the distribution packs its own
// modules: 54 MB of zstd take 0.35 s to unpack, and of xz 2.7 s, each time that gpuadm runs. Sources: docs/decisions/098.
const moduleRecord = "/run/gpuadm-modules.json"

// maxRecord is more than the modules of a hundred kernels take, in bytes.
const maxRecord = 1 << 20

// recorded is a packed module's file, and what it says.
type recorded struct {
	moduleKey
	Says ModuleFile `json:"says"`
}

// recall takes over what an apply of this boot has kept. A record that another user could have written does not count.
func (c *ModuleCache) recall(v host.View) {
	if c.recalled || !v.Live() {
		return
	}
	c.recalled = true
	if info, err := v.Stat(moduleRecord); err != nil || info.Size > maxRecord || v.Trusted(moduleRecord) != nil {
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
	c.news = c.news || packedModule(key.Path)
}

// Keep records what packed modules say, if it was not known. Where it cannot, they are unpacked again the next time. One of a file that
// has changed since is left out.
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
		if info, err := h.Stat(key.Path); packedModule(key.Path) && err == nil && info.Size == key.Size && info.Ctime.Equal(key.Ctime) {
			all = append(all, recorded{key, says})
		}
	}
	slices.SortFunc(all, func(a, b recorded) int { return strings.Compare(a.Path, b.Path) })
	if text, err := json.Marshal(all); err == nil && len(text) < maxRecord {
		_ = h.WriteFile(moduleRecord, append(text, '\n'), host.Attr{Mode: 0o644})
	}
}
