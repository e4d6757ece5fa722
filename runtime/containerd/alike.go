// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// staysAlike says whether a file of the tree keeps its entry of the handler, although another file
// has one, too: a program such as nvidia-ctk has written the other entry with gpuadm's keys and
// values, and the daemon reads this file's in any case. To remove gpuadm's entry would change
// nothing for containers, and would restart the daemon. Undo removes it.
func (c *criTree) staysAlike(f configFile, h engine.Handler, target string) bool {
	if !c.hasEntryOutside(f.path, h.Name) || !c.isAlike(f, h) {
		return false
	}
	return f.path != target || len(c.ops(c.index(target), h)) == 0
}

// asFound wants a file to stay as it is.
func asFound(file *things.FileThing, why string) converge.Want {
	want := things.Edited(file, func(found []byte) ([]byte, error) { return found, nil }, why)
	want.AsFound = true
	return want
}

// isAlike says whether a file says of the handler what the whole tree says, and no more than the
// spec asks for.
func (c *criTree) isAlike(f configFile, h engine.Handler) bool {
	if !c.hasEntry(f, h.Name) {
		return false
	}
	plugins, _, _ := c.reader.mergeAll([]configFile{f})
	alone := &criTree{files: []configFile{f}, reader: c.reader}
	alone.cri, _ = plugins[c.effectiveName()].(map[string]any)
	if !engine.SameEntry(alone.entry(h.Name), c.entry(h.Name), isNone) {
		return false
	}

	isDefault := toml.String(toml.Sub(alone.cri, "containerd"), "default_runtime_name") == h.Name
	_, cdi := toml.Field(alone.cri, "enable_cdi")
	saysMore := isDefault && !h.Default || cdi == true && !h.CDI
	return !saysMore
}
