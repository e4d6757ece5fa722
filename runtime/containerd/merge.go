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
	cdiOff                  // 1.7: false unless set
	cdiOn                   // 2.0 to 2.3: true unless set
)

// criReader is how one version of containerd reads its configuration.
type criReader struct {
	daemon string // for messages
	known  bool   // the version is known
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
	major, minor, known := engine.ParseVersion(d.Version)
	if !known {
		return unknownReader(files)
	}

	r := criReader{daemon: "containerd " + d.Version, known: true}
	if major < 2 {
		r.merge = mergeWhole
		r.max = 2
		r.create = 2
		if major == 1 && minor >= 7 {
			r.cdi = cdiOff
		}
		return r
	}

	r.merge = migrateThenMerge
	r.max = 4
	r.create = 3
	if engine.IsBefore(d.Version, 2, 3) {
		r.merge = mergeThenMigrate
		r.max = 3
	}
	if engine.IsBefore(d.Version, 2, 4) {
		r.cdi = cdiOn
	}
	r.rootLeads = rootLed().MatchString(d.Version)
	return r
}

// unknownReader is for a daemon of unknown version: it does what is right for each version that the
// files may have been written for.
func unknownReader(files []configFile) criReader {
	hasV2 := false
	hasV3 := false
	for _, f := range files {
		hasV2 = hasV2 || f.plugin(criV2) != nil
		hasV3 = hasV3 || f.plugin(criV3) != nil
	}

	r := criReader{
		daemon: "this containerd",
		max:    4,
		create: 2,
		cdi:    cdiOff,
	}
	if files[0].version >= 3 || hasV3 && !hasV2 {
		r.merge = migrateThenMerge
		r.cdi = cdiOn
	}
	return r
}

// isV1 says whether the daemon is known to be containerd 1.x.
func (r criReader) isV1() bool { return r.known && r.merge == mergeWhole }

// mergeAll returns the plugins' tables as the daemon merges and migrates them, the same before
// migration, and the version by which the daemon reads them.
func (r criReader) mergeAll(files []configFile) (plugins, raw map[string]any, version int64) {
	plugins = map[string]any{}
	switch r.merge {
	case mergeWhole:
		for _, f := range files {
			if f.version > 0 {
				version = f.version
			}
			maps.Copy(plugins, toml.Sub(f.tree, "plugins"))
		}
		return plugins, plugins, version

	case mergeThenMigrate:
		version = 3
		for _, f := range files {
			if f.version >= 2 {
				version = f.version
			}
			mergeTables(plugins, toml.CopyTable(toml.Sub(f.tree, "plugins")))
		}

		raw = plugins
		if version < 3 {
			plugins = toml.CopyTable(raw)
			migrateCRI(plugins)
		}
		return plugins, raw, version
	}

	for _, f := range files {
		tables := toml.CopyTable(toml.Sub(f.tree, "plugins"))
		if f.version < 4 {
			migrateCRI(tables)
		}
		mergeTables(plugins, tables)
	}

	return plugins, plugins, 3
}

// mergeTables is what mergo does for containerd 2.x within a plugin: tables by key, everything else
// is replaced.
func mergeTables(to, from map[string]any) {
	for key, value := range from {
		toTable, inTo := to[key].(map[string]any)
		fromTable, isTable := value.(map[string]any)
		if inTo && isTable {
			mergeTables(toTable, fromTable)
			continue
		}
		to[key] = value
	}
}

// migrateCRI is configMigration of plugins/cri/runtime in containerd 2.x, for the settings that
// gpuadm reads: a value that the new name already has stays.
func migrateCRI(plugins map[string]any) {
	from, ok := plugins[criV2].(map[string]any)
	if !ok {
		return
	}
	fromContainerd, _ := from["containerd"].(map[string]any)
	to := tableIn(plugins, criV3)
	toContainerd := tableIn(to, "containerd")
	copyMissing(to, from)
	copyMissing(toContainerd, fromContainerd)

	runtimes, _ := toContainerd["runtimes"].(map[string]any)
	for _, value := range runtimes {
		entry, _ := value.(map[string]any)
		mode, found := entry["sandbox_mode"]
		if found && entry["sandboxer"] == nil {
			entry["sandboxer"] = mode
			delete(entry, "sandbox_mode")
		}
	}
}

// copyMissing copies the values that to does not have.
func copyMissing(to, from map[string]any) {
	for key, value := range from {
		if _, found := to[key]; !found {
			to[key] = toml.Copy(value)
		}
	}
}

// tableIn returns the table at a key, and makes it if there is none.
func tableIn(table map[string]any, key string) map[string]any {
	sub, ok := table[key].(map[string]any)
	if !ok {
		sub = map[string]any{}
		table[key] = sub
	}
	return sub
}

// isZero says whether a value is the zero value of its type.
func isZero(value any) bool {
	switch value := value.(type) {
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	}
	return value == "" || value == false || value == int64(0) || value == float64(0)
}

// isNone says whether a value means the same as none.
func isNone(value any) bool {
	return value == nil || isZero(value) || value == "podsandbox"
}
