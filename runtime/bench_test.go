// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// BenchmarkEdit edits a file of the size that containerd 1.7 prints as its default, 8 KB.
func BenchmarkEdit(b *testing.B) {
	data := read(b, corpusDir+"/08-v2-containerd17-default.toml")
	for i := 0; len(data) < 8000; i++ {
		data = fmt.Appendf(data, "\n[plugins.\"io.containerd.example.v1.p%d\"]\n  path = \"/var/lib/containerd/%d\"\n  options = [\"a\", \"b\"]\n  limit = %d\n", i, i, i)
	}
	tree := Tree{Root: File{etc + "/config.toml", data}}
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
			if _, _, err := TakeOut(data, after, found); err != nil {
				b.Fatal(err)
			}
		}
	})
}
