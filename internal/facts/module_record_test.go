// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// unpacks counts how often a module's file is read.
type unpacks struct {
	host.View
	reads *int
}

func (u unpacks) ReadAt(name string, p []byte, off int64) (int, error) {
	if strings.HasSuffix(name, ".ko.zst") {
		*u.reads++
	}
	return u.View.ReadAt(name, p, off)
}

// TestModuleRecord: what an apply has unpacked, later runs of the same boot do not unpack again, and their facts are the same; unless
// the file has changed, the record is another user's or damaged, or it was of another file.
func TestModuleRecord(t *testing.T) {
	const file = "/lib/modules/6.1.0/updates/dkms/nvidia.ko.zst"
	boot := func() *simhost.Node {
		n, err := simhost.New([]byte("-- lib/modules/6.1.0/modules.dep --\nupdates/dkms/nvidia.ko.zst:\n-- run/lock --\n-- etc/os-release --\nID=debian\n"))
		must.OK(t, err)
		put(t, n, file, packed(t, ".zst", openModule("6.1.0")))
		return n
	}
	gather := func(n *simhost.Node, keep bool) (nvidia *ModuleFile, reads int) {
		t.Helper()
		var cache Cache
		f, err := cache.Gather(t.Context(), unpacks{n, &reads}, Needs{Modules: true})
		if err != nil || len(f.Modules.Kernels) != 1 || f.Modules.Kernels[0].Nvidia == nil {
			t.Fatalf("%+v, %v", f.Modules, err)
		}
		if keep {
			cache.Keep(n)
		}
		return f.Modules.Kernels[0].Nvidia, reads
	}
	n := boot()
	first, reads := gather(n, false)
	if _, err := n.Stat(moduleRecord); err == nil || reads == 0 {
		t.Errorf("facts alone wrote a record, or the module was not read: %d reads", reads)
	}
	gather(n, true)
	touches := n.Touches()
	again, reads := gather(n, true)
	if reads != 0 || n.Touches() != touches {
		t.Errorf("the next run has read the module %d times, and made %d touches", reads, n.Touches()-touches)
	}
	if a, b := asJSON(t, first), asJSON(t, again); a != b {
		t.Errorf("a record says %s of %s", b, a)
	}
	for what, change := range map[string]func(n *simhost.Node){
		"the module was built again": func(n *simhost.Node) { put(t, n, file, packed(t, ".zst", openModule("6.1.0"))) },
		"another user may write it":  func(n *simhost.Node) { attr(t, n, moduleRecord, host.Attr{Mode: 0o666}) },
		"another user owns it":       func(n *simhost.Node) { attr(t, n, moduleRecord, host.Attr{Mode: 0o644, UID: 1000}) },
		"it is torn":                 func(n *simhost.Node) { put(t, n, moduleRecord, []byte(`[{"path":`)) },
		"it is no list":              func(n *simhost.Node) { put(t, n, moduleRecord, []byte(`{"path":"/x"}`)) },
		"it is gone":                 func(n *simhost.Node) { remove(t, n, moduleRecord) },
		"it is too big":              func(n *simhost.Node) { put(t, n, moduleRecord, make([]byte, 2<<20)) },
		"it is of another file": func(n *simhost.Node) {
			text := must.Get(n.ReadFile(moduleRecord))(t)
			put(t, n, moduleRecord, []byte(strings.Replace(string(text), `"says":{"path":"`, `"says":{"path":"/other`, 1)))
		},
	} {
		n := boot()
		gather(n, true)
		change(n)
		if found, reads := gather(n, true); reads == 0 || asJSON(t, found) != asJSON(t, first) {
			t.Errorf("%s: read %d times, %+v", what, reads, found)
		}
		if _, reads := gather(n, true); reads != 0 {
			t.Errorf("%s: the next apply has not healed the record", what)
		}
	}
}

func asJSON(t *testing.T, m *ModuleFile) string {
	t.Helper()
	text := must.Get(json.Marshal(m))(t)
	return string(text)
}

func put(t *testing.T, n *simhost.Node, name string, data []byte) {
	t.Helper()
	for i, part := range strings.Split(name, "/")[1:] {
		if dir := strings.Join(strings.Split(name, "/")[:i+1], "/"); dir != "" && part != "" {
			_ = n.Mkdir(dir, host.Attr{Mode: 0o755})
		}
	}
	must.OK(t, n.WriteFile(name, data, host.Attr{Mode: 0o644}))
}

func attr(t *testing.T, n *simhost.Node, name string, to host.Attr) {
	t.Helper()
	must.OK(t, n.SetAttr(name, to))
}

func remove(t *testing.T, n *simhost.Node, name string) {
	t.Helper()
	must.OK(t, n.Remove(name))
}
