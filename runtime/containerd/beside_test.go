// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBeside: what an edit is about may differ, and nothing else.
func TestBeside(t *testing.T) {
	const before = "version = 2\nroot = \"/a\"\n[timeouts]\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"p\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"runc\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"x\"\n[plugins.other]\na = 1\n"
	ops := []toml.Op{
		toml.Set([]string{"plugins", criV2, "containerd", "default_runtime_name"}, "nvidia"),
		toml.Set([]string{"plugins", criV2, "containerd", "runtimes", "nvidia", "runtime_type"}, "z"),
	}
	cri := "[plugins.\"io.containerd.grpc.v1.cri\""
	for what, c := range map[string]struct{ after, at string }{
		"nothing":                            {before, ""},
		"the version":                        {strings.Replace(before, "version = 2", "version = 3", 1), ""},
		"the handler":                        {before + cri + ".containerd.runtimes.nvidia]\nruntime_type = \"y\"\n", ""},
		"a key of the edit":                  {strings.Replace(before, "_name = \"runc\"", "_name = \"nvidia\"", 1), ""},
		"that key in capitals":               {strings.Replace(before, "default_runtime_name = \"runc\"", "Default_Runtime_Name = \"nvidia\"", 1), ""},
		"that key gone":                      {strings.Replace(before, "default_runtime_name = \"runc\"", "", 1), ""},
		"an empty table in CRI":              {before + cri + ".containerd.untrusted]\n" + cri + ".cni.x]\n", ""},
		"an empty CRI table of new name":     {before + "[plugins.\"io.containerd.cri.v1.runtime\"]\n", ""},
		"another handler":                    {before + cri + ".containerd.runtimes.kata]\nruntime_type = \"y\"\n", "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata.runtime_type"},
		"a handler of that name in capitals": {before + cri + ".containerd.runtimes.NVIDIA]\nruntime_type = \"y\"\n", "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.NVIDIA.runtime_type"},
		"another handler's key":              {strings.Replace(before, "\"x\"", "\"y\"", 1), "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.runtime_type"},
		"a key of CRI":                       {strings.Replace(before, "\"p\"", "\"q\"", 1), "plugins.\"io.containerd.grpc.v1.cri\".sandbox_image"},
		"a key of CRI gone":                  {strings.Replace(before, "sandbox_image = \"p\"\n", "", 1), "plugins.\"io.containerd.grpc.v1.cri\".sandbox_image"},
		"a type":                             {strings.Replace(before, "a = 1", "a = 1.0", 1), "plugins.other.a"},
		"a table that becomes a value":       {strings.Replace(before, "[plugins.other]\na = 1\n", "[plugins]\nother = 1\n", 1), "plugins.other"},
		"a root key":                         {strings.Replace(before, "\"/a\"", "\"/b\"", 1), "root"},
		"an empty table elsewhere":           {strings.Replace(before, "[timeouts]\n", "", 1), "timeouts"},
		"another plugin":                     {before + "[plugins.new]\nb = 1\n", "plugins.new"},
	} {
		a := must.Get(toml.Values([]byte(before)))(t)
		b, err := toml.Values([]byte(c.after))
		if err != nil {
			t.Fatal(what, err)
		}
		for _, pair := range [][2]map[string]any{{a, b}, {b, a}} {
			check.Equal(t, toml.ShowPath(beside(engine.Handler{Name: "nvidia"}, ops, pair[0], pair[1], nil)), c.at, "%s:", what)
		}
	}
}

// TestManyWrongHandlers: the first of a thousand wrong handlers is named, and the file is not parsed for each.
func TestManyWrongHandlers(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("version = 2\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.h%04d]\nruntime_type = 5\n", 999-i)
	}
	parsed := testing.AllocsPerRun(1, func() {
		_, err := Target(Tree{Root: File{Path: "/etc/containerd/config.toml", Data: []byte(text.String())}}, Daemon{Version: "1.7.24"}, handlers()[0])
		check.That(t, err != nil && strings.Contains(err.Error(), "h0000"), "%v", err)
	})
	if one := testing.AllocsPerRun(1, func() { _, _ = toml.Parse([]byte(text.String())) }); parsed > 50*one {
		t.Errorf("%.0f allocations, of one parse %.0f", parsed, one)
	}
}

// TestSpellings: names of plugins and handlers are spelt exactly, and an empty name is a name.
func TestSpellings(t *testing.T) {
	for what, text := range map[string]string{
		"a plugin in capitals":     "version = 2\nroot = '/x'\n[plugins.CRI.containerd.Runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n",
		"a handler without a name": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.\"\"]\nruntime_type = \"io.containerd.runc.v2\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.a]\nruntime_type = \"io.containerd.runc.v2\"\nsnapshotter = \"s\"\n",
	} {
		tree, texts := Tree{Root: File{Path: "/c.toml", Data: []byte(text)}}, map[string]bool{}
		for range 50 {
			out, err := Edit(tree, Daemon{Version: "1.7.24"}, handlers()[0], "/c.toml", tree.Root.Data)
			must.That(t, err == nil, "%s: %v", what, err)
			texts[string(out)] = true
		}
		check.That(t, len(texts) == 1, "%s: %d results", what, len(texts))
	}
}
