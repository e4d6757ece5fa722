// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// FormTOML is what the journal calls the form of files whose edits TakeOut takes out.
const FormTOML = "toml"

// TakeOut takes gpuadm's edit of an engine's TOML file (before → after) out of found, as
// toml.TakeOut does. A runtime that gpuadm added stays as a whole if another process has added keys
// to it, or if it is the default of what remains.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	return TakeOutOf(nil)(before, after, found)
}

// TakeOutOf is TakeOut with a cache of parsed texts.
func TakeOutOf(texts *toml.Texts) func(before, after, found []byte) (rest []byte, left []string, err error) {
	rules := toml.Rules{
		Whole: changedEntries,
		Keep: func(u *toml.TakingOut) {
			keepDefault(u)
			keepVersion(u)
		},
	}
	return func(before, after, found []byte) (rest []byte, left []string, err error) {
		return texts.TakeOut(before, after, found, rules)
	}
}

// addedEntries are the paths in the found file of the runtimes that gpuadm's edit added.
func addedEntries(u *toml.TakingOut) [][]string {
	var paths [][]string
	for _, path := range u.Made {
		inRuntimes := len(path) > 2 && path[len(path)-2] == "runtimes"
		if _, isTable := toml.ValueAt(u.Is, path).(map[string]any); isTable && inRuntimes {
			paths = append(paths, path)
		}
	}

	return paths
}

// changedEntries are the runtimes that gpuadm added and that another process has changed. Such an
// entry stays as a whole: half a runtime is worse than one too many.
func changedEntries(u *toml.TakingOut) [][]string {
	var kept [][]string
	for _, path := range addedEntries(u) {
		set, _ := toml.ValueAt(u.Became, path).(map[string]any)
		found := toml.ValueAt(u.Is, path).(map[string]any)
		changes := toml.Diff(set, found, nil)
		i := slices.IndexFunc(changes, func(c toml.Change) bool { return c.New != nil })
		if i < 0 {
			continue
		}

		change := changes[i]
		why := fmt.Sprintf(", with %s = %s", toml.ShowPath(change.Path), toml.Show(change.New))
		if change.Old != nil {
			why += ", gpuadm had set " + toml.Show(change.Old)
		}
		u.Stays(path, "is there", why)
		kept = append(kept, path)
	}

	return kept
}

// keepDefault keeps a runtime that gpuadm added if the rest of the file makes it the default:
// without it containerd's CRI plugin does not load, and CRI-O does not start.
func keepDefault(u *toml.TakingOut) {
	for _, path := range addedEntries(u) {
		inside := func(c toml.Change) bool { return toml.HasPrefix(c.Path, path) }
		if !slices.ContainsFunc(u.Due, inside) {
			continue
		}
		rest, err := u.Want()
		if err != nil || !lacksDefault(rest, path) || lacksDefault(u.Was, path) {
			continue
		}

		u.Due = slices.DeleteFunc(u.Due, inside)
		u.Stays(path, "is there", ", as the default runtime of what was set outside gpuadm")
	}
}

// lacksDefault says whether the file has no entry for a runtime that it makes the default: by name,
// or runc where it names none. containerd has the name in default_runtime_name, and CRI-O in
// default_runtime.
func lacksDefault(tree map[string]any, entry []string) bool {
	name := entry[len(entry)-1]
	settings, _ := toml.ValueAt(tree, entry[:len(entry)-2]).(map[string]any)
	runtimes := toml.Sub(settings, "runtimes")
	if runtimes[name] != nil {
		return false
	}

	byDefault := cmp.Or(
		toml.String(settings, "default_runtime_name"),
		toml.String(settings, "default_runtime"),
	)
	if byDefault == "" && len(runtimes) > 0 {
		byDefault = "runc"
	}
	return byDefault == name
}

// keepVersion keeps the version that gpuadm's edit wrote as long as the file has other content:
// containerd reads that by the version. If nothing else of gpuadm's is in the file, another program
// has rewritten it, and the version is that program's.
func keepVersion(u *toml.TakingOut) {
	isVersion := func(c toml.Change) bool {
		return len(c.Path) == 1 && c.Path[0] == "version" && c.Old == nil
	}
	if !slices.ContainsFunc(u.Due, isVersion) {
		return
	}
	if rest, err := u.Want(); err != nil || len(rest) == 0 {
		return
	}

	u.Due = slices.DeleteFunc(u.Due, isVersion)
	if len(u.Due) > 0 {
		u.Stays([]string{"version"}, "is "+toml.Show(u.Is["version"]), ", and what was added outside gpuadm is read by it")
	}
}
