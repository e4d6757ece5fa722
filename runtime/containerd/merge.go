// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"maps"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// The names of the CRI plugin. criV1 is only in files of version 1. From version 3 on the plugin is
// split, and criV3 is the part with the runtimes.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

type mergeKind int

const (
	// mergeWhole (1.x): an imported plugin table replaces the one before it
	// (https://github.com/containerd/containerd/issues/5837).
	mergeWhole mergeKind = iota
	// mergeThenMigrate (2.0 to 2.2): tables are merged key by key, then v2 names are migrated if
	// the last version read is below 3.
	mergeThenMigrate
	// migrateThenMerge (2.3 on): every file is migrated by its own version, then they are merged.
	migrateThenMerge
)

type cdiKind int

const (
	cdiFixed cdiKind = iota // there is no enable_cdi: 1.6 cannot, 2.4 always does
	cdiOff                  // 1.7: false unless stated
	cdiOn                   // 2.0 to 2.3: true unless stated
)

// criReader is how one version of containerd reads its configuration.
type criReader struct {
	daemon string // for messages
	known  bool
	merge  mergeKind
	max    int64 // the newest version of the format it reads
	create int64 // the version of a file written for it
	cdi    cdiKind

	// rootLeads: 2.3 before 2.3.7 refuses an imported file of a newer version than the root's.
	// Sources: containerd's pull 13939 and https://github.com/NVIDIA/aicr/issues/1688; measured on
	// 2.3.4.
	rootLeads bool
}

// rootLed are the versions for which rootLeads is true.
var rootLed = pattern.Of(`^v?2\.3\.[0-6](\D|$)`)

func newReader(d Daemon, files []configFile) criReader {
	major, minor, ok := engine.ParseVersion(d.Version)
	r := criReader{daemon: "containerd " + d.Version, known: ok, max: 2, create: 2}
	switch {
	case !ok:
		return unknownReader(files)
	case major < 2:
		if major == 1 && minor >= 7 {
			r.cdi = cdiOff
		}
		return r
	}
	r.merge, r.max, r.create, r.cdi = migrateThenMerge, 4, 3, cdiFixed
	if major == 2 && minor < 4 {
		r.cdi = cdiOn
	}
	r.rootLeads = rootLed().MatchString(d.Version)
	if major == 2 && minor < 3 {
		r.merge, r.max = mergeThenMigrate, 3
	}
	return r
}

// unknownReader is for a daemon of unknown version: it does what is right for each version that the
// files may have been written for.
func unknownReader(files []configFile) criReader {
	r := criReader{daemon: "this containerd", max: 4, create: 2, cdi: cdiOff}
	v3, older := false, false
	for _, f := range files {
		v3, older = v3 || f.plugin(criV3) != nil, older || f.plugin(criV2) != nil
	}
	if files[0].version >= 3 || v3 && !older {
		r.merge, r.cdi = migrateThenMerge, cdiOn
	}
	return r
}

// mergeAll returns the plugins' tables as the daemon merges and migrates them, the same before
// migration, and the version by which the daemon reads them.
func (r criReader) mergeAll(files []configFile) (plugins, raw map[string]any, version int64) {
	plugins = map[string]any{}
	if r.merge != mergeWhole {
		version = 3
	}
	for _, f := range files {
		if r.merge == mergeWhole || r.merge == mergeThenMigrate && f.version >= 2 {
			if f.version > 0 {
				version = f.version
			}
		}
		from := toml.Sub(f.tree, "plugins")
		if r.merge == mergeWhole {
			maps.Copy(plugins, from)
			continue
		}
		from = toml.CopyTable(from)
		if r.merge == migrateThenMerge && f.version < 4 {
			migrateCRI(from)
		}
		mergeTables(plugins, from)
	}
	raw = plugins
	if r.merge == mergeThenMigrate && version < 3 {
		plugins = toml.CopyTable(raw)
		migrateCRI(plugins)
	}
	return plugins, raw, version
}

// mergeTables is what mergo does for containerd 2.x within a plugin: tables by key, everything else
// is replaced.
func mergeTables(to, from map[string]any) {
	for key, v := range from {
		a, inTo := to[key].(map[string]any)
		b, ok := v.(map[string]any)
		if inTo && ok {
			mergeTables(a, b)
			continue
		}
		to[key] = v
	}
}

// migrateCRI is configMigration of plugins/cri/runtime in containerd 2.x, for the settings that
// gpuadm reads: a value that the new name already has stays.
func migrateCRI(plugins map[string]any) {
	src, ok := plugins[criV2].(map[string]any)
	if !ok {
		return
	}
	dst := tableIn(plugins, criV3)
	to := tableIn(dst, "containerd")
	fill := func(to, from map[string]any) {
		for key, v := range from {
			if _, there := to[key]; !there {
				to[key] = toml.Copy(v)
			}
		}
	}
	containerd, _ := src["containerd"].(map[string]any)
	fill(dst, src)
	fill(to, containerd)
	runtimes, _ := to["runtimes"].(map[string]any)
	for _, v := range runtimes {
		entry, _ := v.(map[string]any)
		if mode, ok := entry["sandbox_mode"]; ok && entry["sandboxer"] == nil {
			entry["sandboxer"] = mode
			delete(entry, "sandbox_mode")
		}
	}
}

func tableIn(t map[string]any, key string) map[string]any {
	sub, ok := t[key].(map[string]any)
	if !ok {
		sub = map[string]any{}
		t[key] = sub
	}
	return sub
}

func isZero(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return v == "" || v == false || v == int64(0) || v == float64(0)
}
