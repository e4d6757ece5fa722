// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

const kubeadm = "11-v2-kubeadm-comments"

// edited is a shape and what becomes of it on 1.7 with all wishes.
func edited(t testing.TB, name string) (before, after []byte) {
	t.Helper()
	for _, c := range corpus(t) {
		if c.name != name {
			continue
		}
		d, h := Daemon{"1.7.24"}, handlers()[1]
		target, err := Target(c.tree, d, h)
		if err != nil {
			t.Fatal(err)
		}
		before = c.tree.data(target)
		if after, err = Edit(c.tree, d, h, target, before); err != nil {
			t.Fatal(err)
		}
		return before, after
	}
	t.Fatalf("no shape %s", name)
	return nil, nil
}

func TestTakeOut(t *testing.T) {
	before, after := edited(t, kubeadm)
	const pause = `"registry.k8s.io/pause:3.9"`
	swap := func(b []byte, old, now string) []byte {
		t.Helper()
		if !bytes.Contains(b, []byte(old)) {
			t.Fatalf("no %q in\n%s", old, b)
		}
		return bytes.Replace(b, []byte(old), []byte(now), 1)
	}
	kata := `
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
        runtime_type = "io.containerd.kata.v2"
`
	for name, c := range map[string]struct {
		change func(b []byte) []byte // what others do, to the file before and after our edit alike
		exact  bool                  // lines come back to the byte
	}{
		"appended":        {func(b []byte) []byte { return append(bytes.Clone(b), "\n[proxy_plugins.x]\ntype = \"snapshot\"\n"...) }, true},
		"prepended":       {func(b []byte) []byte { return append([]byte("# by ansible\n"), b...) }, true},
		"value elsewhere": {func(b []byte) []byte { return swap(b, pause, `"mirror/pause:3.10"`) }, true},
		"neighbour added": {func(b []byte) []byte { return swap(b, "# --- metrics", kata+"# --- metrics") }, true},
		"comments gone":   {func(b []byte) []byte { return swap(b, "      # nothing but runc is supported\n", "") }, true},
		"unix to dos":     {func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")) }, true},
		"written anew":    {func(b []byte) []byte { return marshalled(t, b) }, false},
		"turned round":    {func(b []byte) []byte { return turned(t, b) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.change(before)
			got, err := TakeOut(before, after, c.change(after))
			if err != nil {
				t.Fatal(err)
			}
			if c.exact && !bytes.Equal(got, want) {
				t.Errorf("lines differ:\n%s", textDiff(want, got))
			}
			if a, b := leaves(t, got), leaves(t, want); !maps.Equal(a, b) {
				t.Errorf("keys differ: got %q, want %q", a, b)
			}
		})
	}
}

// marshalled is the file as nvidia-ctk or any other program writes it: same keys, no comments, other order.
func marshalled(t testing.TB, b []byte) []byte {
	tree, err := tomlTree(b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := toml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// turned has the sections in the opposite order.
func turned(t testing.TB, b []byte) []byte {
	d, err := parseTOML(b)
	if err != nil {
		t.Fatal(err)
	}
	var cuts []int
	for _, e := range d.exprs {
		if e.header {
			cuts = append(cuts, e.start)
		}
	}
	out := bytes.Clone(b[:cuts[0]])
	cuts = append(cuts, len(b))
	for i := len(cuts) - 2; i >= 0; i-- {
		out = append(out, b[cuts[i]:cuts[i+1]]...)
	}
	return out
}

func TestTakeOutRefuses(t *testing.T) {
	before, after := edited(t, kubeadm)
	swap := func(old, now string) []byte { return bytes.Replace(after, []byte(old), []byte(now), 1) }
	for name, c := range map[string]struct {
		found []byte
		want  string
	}{
		"our value changed": {swap("/usr/bin/nvidia-container-runtime", "/opt/nvidia"), `BinaryName is "/opt/nvidia" (line 30), we wrote "/usr/bin/nvidia-container-runtime"`},
		"default changed":   {swap(`default_runtime_name = "nvidia"`, `default_runtime_name = "kata"`), `default_runtime_name is "kata" (line 17), we wrote "nvidia"`},
		"our key gone":      {swap("  enable_cdi = true\n", ""), "enable_cdi is gone"},
		"key added to ours": {swap(`          BinaryName = "/usr`, "          Root = \"/x\"\n          BinaryName = \"/usr"), "someone added"},
		"not there":         {before, `it no longer stands: plugins."io.containerd.grpc.v1.cri".containerd.default_runtime_name is "runc" again (line 16)`},
		"broken":            {[]byte("version = \n"), "not valid TOML: line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := TakeOut(before, after, c.found)
			if err == nil || !strings.Contains(err.Error(), c.want) || out != nil {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTakeOutOfOurOwnFile(t *testing.T) {
	_, after := edited(t, "00-missing")
	got, err := TakeOut(nil, after, append(bytes.Clone(after), '\n'))
	if err != nil || got != nil {
		t.Errorf("a file with nothing else in it: got %q %v", got, err)
	}
	got, err = TakeOut(nil, after, append([]byte("# mine\n"), after...))
	if err != nil || string(got) != "# mine\n" {
		t.Errorf("a file with a comment: got %q %v", got, err)
	}
	_, err = TakeOut(nil, after, append(bytes.Clone(after), "\n[debug]\nlevel = \"info\"\n"...))
	if err == nil || !strings.Contains(err.Error(), "version (line 1)") {
		t.Errorf("a file that others write into: got %v", err)
	}
}

// TestTakeOutKeepsForeignEdits lets others change every shape at random, outside of what is ours.
func TestTakeOutKeepsForeignEdits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	done := 0
	for _, c := range corpus(t) {
		for _, h := range handlers() {
			for _, d := range []Daemon{{"1.7.24"}, {"2.1.5"}, {"2.4.2"}} {
				target, err := Target(c.tree, d, h)
				if err != nil {
					continue
				}
				before := c.tree.data(target)
				after, err := Edit(c.tree, d, h, target, before)
				if err != nil || len(before) == 0 || bytes.Equal(before, after) {
					continue
				}
				for range 8 {
					found := meddle(rng, after)
					if _, err := tomlTree(found); err != nil {
						continue
					}
					takenOut(t, before, after, found)
					done++
				}
			}
		}
	}
	if done < 300 {
		t.Errorf("only %d foreign edits were tried", done)
	}
}

// meddle puts lines in, and tables at the end.
func meddle(rng *rand.Rand, b []byte) []byte {
	lines := splitLines(bytes.Clone(b))
	for i := range 1 + rng.IntN(4) {
		at := rng.IntN(len(lines) + 1)
		line := []byte(fmt.Sprintf("# foreign %d\n", i))
		if rng.IntN(3) == 0 {
			line = []byte("\n")
		}
		if at > 0 && !bytes.HasSuffix(lines[at-1], []byte("\n")) {
			at--
		}
		lines = append(lines[:at], append([][]byte{line}, lines[at:]...)...)
	}
	out := joinLines(lines, "\n")
	if rng.IntN(2) == 0 {
		out = append(out, fmt.Sprintf("\n[foreign.t%d]\nx = %d\n", rng.IntN(9), rng.IntN(99))...)
	}
	return out
}

// takenOut holds that what TakeOut returns is found without our keys, by comparing single values.
func takenOut(t testing.TB, before, after, found []byte) {
	t.Helper()
	got, err := TakeOut(before, after, found)
	if err != nil {
		if !strings.Contains(err.Error(), "cannot take out our edit: ") {
			t.Fatalf("odd error: %v", err)
		}
		if !strings.Contains(err.Error(), "ours") && !strings.Contains(err.Error(), "stands") {
			t.Fatalf("%v\n--- before\n%s\n--- after\n%s\n--- found\n%s", err, before, after, found)
		}
		return
	}
	want, was, became := leaves(t, found), leaves(t, before), leaves(t, after)
	for key, v := range became {
		if was[key] != v {
			if want[key] != v {
				t.Fatalf("%q was taken out and was not as we wrote it", key)
			}
			delete(want, key)
		}
	}
	for key, v := range was {
		if became[key] != v {
			want[key] = v
		}
	}
	if left := leaves(t, got); !maps.Equal(left, want) {
		t.Fatalf("keys differ\n got %q\nwant %q", left, want)
	}
	for _, l := range splitLines(found) {
		if bytes.Contains(l, []byte("foreign")) && !bytes.Contains(got, bytes.TrimRight(l, "\n")) {
			t.Fatalf("%q was lost:\n%s", l, got)
		}
	}
}

func TestDiffLines(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	text := func() [][]byte {
		lines := make([][]byte, rng.IntN(12))
		for i := range lines {
			lines[i] = []byte{byte('a' + rng.IntN(4)), '\n'}
		}
		return lines
	}
	for range 5000 {
		a, b := text(), text()
		var out [][]byte
		at, edits := 0, 0
		for _, h := range diffLines(a, b) {
			if h.a0 < at || h.a0 == h.a1 && h.b0 == h.b1 {
				t.Fatalf("bad hunk %v for %s %s", h, a, b)
			}
			out = append(append(out, a[at:h.a0]...), b[h.b0:h.b1]...)
			at = h.a1
			edits += h.a1 - h.a0 + h.b1 - h.b0
		}
		out = append(out, a[at:]...)
		if !bytes.Equal(bytes.Join(out, nil), bytes.Join(b, nil)) {
			t.Fatalf("%s -> %s gives %s", a, b, out)
		}
		least := 0
		for _, h := range diffExact(a, b) {
			least += h.a1 - h.a0 + h.b1 - h.b0
		}
		if edits != least {
			t.Fatalf("%s -> %s in %d edits, not %d", a, b, edits, least)
		}
	}
}
