// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
)

// FuzzEdit holds the laws on any bytes: no panic, an own proof of what is right, a second edit that
// changes nothing.
func FuzzEdit(f *testing.F) {
	for _, c := range corpus(f) {
		imported := []byte{}
		if len(c.tree.Imports) > 0 {
			imported = c.tree.Imports[len(c.tree.Imports)-1].Data
		}
		for i := range 4 {
			f.Add(c.tree.Root.Data, imported, byte(i*5))
		}
	}

	f.Fuzz(func(t *testing.T, root, imported []byte, choice byte) {
		var err error
		alloc.Most(t, 4000, len(root), func() { _, err = toml.Values(root) })
		if err != nil {
			root = bytes.ToValidUTF8(root, nil)
		}
		tree := Tree{Root: File{Path: etc + "/config.toml", Data: root}}
		if len(imported) > 0 {
			tree.Imports = []File{{Path: etc + "/conf.d/50-x.toml", Data: imported}}
			if patterns, err := patternsOf(tree.Root); err != nil || !covers(patterns) {
				tree.Imports = nil
			}
		}

		ds := daemons()
		d, h := ds[int(choice/2)%len(ds)], handlers()[choice%2]
		lawfulFuzz(t, tree, d, h)
	})
}

func covers(patterns []string) bool {
	for _, p := range patterns {
		if p == etc+"/conf.d/*.toml" {
			return true
		}
	}
	return false
}

// lawfulFuzz is lawful without the look at single lines, which any bytes can deceive.
func lawfulFuzz(t *testing.T, tree Tree, d Daemon, h engine.Handler) {
	target, err := Target(tree, d, h)
	if err != nil {
		return
	}
	before := tree.data(target)
	after, err := Edit(tree, d, h, target, before)
	if err != nil {
		must.That(t, !strings.Contains(err.Error(), "internal error"), "containerd %q: %v\n%q", d.Version, err, before)
		return
	}
	then := tree
	if tree.data(target) == nil && target != tree.Root.Path {
		then.Imports = append(then.Imports, File{Path: target, Data: after})
		if len(then.Imports) == 2 && then.Imports[0].Path > then.Imports[1].Path {
			then.Imports[0], then.Imports[1] = then.Imports[1], then.Imports[0]
		}
	} else {
		then = tree.with(target, after)
	}

	if again, err := Edit(then, d, h, target, after); err != nil || !bytes.Equal(again, after) {
		t.Fatalf("containerd %q: a second edit differs: %v\n%q\n%q", d.Version, err, after, again)
	}
	if to, err := Target(then, d, h); err != nil || to != target {
		t.Fatalf("containerd %q: target was %s, is %s %v\n%q", d.Version, target, to, err, after)
	}
	checkHandler(t, then, d, h)
	was, is := leaves(t, before), leaves(t, after)
	for key, v := range was {
		if is[key] != v && !editable(key) {
			t.Fatalf("%q was %s, is %s", key, v, is[key])
		}
	}

	if back, _, err := engine.TakeOut(before, after, after); err != nil || !bytes.Equal(back, before) {
		t.Fatalf("taking out: %v", err)
	}
}

func editable(key string) bool {
	parts := strings.Split(strings.ToLower(key), "\x00")
	switch last := parts[len(parts)-1]; last {
	case "default_runtime_name", "enable_cdi", "binaryname", "runtime_type", "runtime_engine", "runtime_root":
		return true
	}

	return false
}

// FuzzTakeOut holds that whatever is taken out is found without our keys and nothing else, for any
// bytes.
func FuzzTakeOut(f *testing.F) {
	for _, c := range corpus(f) {
		d, h := Daemon{"1.7.24"}, handlers()[1]
		target, err := Target(c.tree, d, h)
		if err != nil {
			continue
		}
		before := c.tree.data(target)
		after, err := Edit(c.tree, d, h, target, before)
		if err != nil {
			continue
		}
		f.Add(before, after, append(bytes.Clone(after), "\n[x]\ny = 1\n"...))
		f.Add(before, after, append([]byte("# x\n"), after...))
		if len(after) < 4000 {
			f.Add(before, after, marshalled(f, after))
		}
	}

	f.Fuzz(func(t *testing.T, before, after, found []byte) {
		for _, data := range [][]byte{before, after, found} {
			if tree, err := toml.Values(data); err != nil || toml.Depth(tree) > toml.MaxDepth || bytes.Contains(data, []byte("0000")) {
				return // leaves tells no key with a zero in it from two
			}
		}

		takenOut(t, before, after, found)
	})
}

// BenchmarkEdit edits a file of the size that containerd 1.7 prints as its default, 8 KB.
func BenchmarkEdit(b *testing.B) {
	data := read(b, corpusDir+"/08-v2-containerd17-default.toml")
	for i := 0; len(data) < 8000; i++ {
		data = fmt.Appendf(data, "\n[plugins.\"io.containerd.example.v1.p%d\"]\n  path = \"/var/lib/containerd/%d\"\n  options = [\"a\", \"b\"]\n  limit = %d\n", i, i, i)
	}
	tree := Tree{Root: File{Path: etc + "/config.toml", Data: data}}
	d, h := Daemon{"1.7.24"}, handlers()[1]
	after := must.Get(Edit(tree, d, h, tree.Root.Path, data))(b)
	for name, found := range map[string][]byte{"first": data, "again": after} {
		b.Run(name, func(b *testing.B) {
			tree := tree.with(tree.Root.Path, found)
			b.SetBytes(int64(len(found)))
			b.ReportAllocs()
			for b.Loop() {
				target := must.Get(Target(tree, d, h))(b)
				must.Get(Edit(tree, d, h, target, found))(b)
			}
		})
	}

	b.Run("takeout", func(b *testing.B) {
		found := append([]byte("# by others\n"), after...)
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := engine.TakeOut(data, after, found); err != nil {
				b.Fatal(err)
			}
		}
	})
}
