// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	gotoml "github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
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
		must.OK(t, err)
		before = c.tree.data(target)
		after, err = Edit(c.tree, d, h, target, before)
		must.OK(t, err)
		return before, after
	}

	t.Fatalf("no shape %s", name)
	return nil, nil
}

// TestTakeOutToTheByte: what undo leaves of a file that another process has edited too is the file
// with that edit alone, also where the file has no line break at its end, and where the other one
// has removed gpuadm's keys and left their headers.
func TestTakeOutToTheByte(t *testing.T) {
	const runc = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	for name, before := range map[string]string{
		"a last comment without a line break": "version = 2\n\n" + runc + "# end of file",
		"a last key without a line break":     "version = 2\n\n" + strings.TrimSuffix(runc, "\n"),
		"nothing but a version":               "version = 2\n",
	} {
		t.Run(name, func(t *testing.T) {
			tree := Tree{Root: File{Path: "/etc/containerd/config.toml", Data: []byte(before)}}
			after, err := Edit(tree, Daemon{"1.7.24"}, handlers()[1], tree.Root.Path, tree.Root.Data)
			must.OK(t, err)

			const note = "# by an operator\n"
			rest, left, err := engine.TakeOut([]byte(before), after, []byte(note+string(after)))
			must.That(t, err == nil && len(left) == 0, "%v, left %q", err, left)
			check.Equal(t, string(rest), note+before, "beside a comment:")

			headers := regexp.MustCompile(`(?m)^\s*(BinaryName|runtime_type|SystemdCgroup) = .*nvidia.*\n`).ReplaceAll(after, nil)
			rest, left, err = engine.TakeOut([]byte(before), after, headers)
			must.That(t, err == nil && len(left) == 0, "%v, left %q", err, left)
			check.Equal(t, string(rest), before, "without one of gpuadm's keys:")
		})
	}
}

func TestTakeOut(t *testing.T) {
	before, after := edited(t, kubeadm)
	const pause = `"registry.k8s.io/pause:3.9"`
	swap := func(b []byte, old, now string) []byte {
		t.Helper()
		must.That(t, bytes.Contains(b, []byte(old)), "no %q in\n%s", old, b)
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
		"rewritten":       {func(b []byte) []byte { return marshalled(t, b) }, false},
		"turned round":    {func(b []byte) []byte { return turned(b) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.change(before)
			got, _, err := engine.TakeOut(before, after, c.change(after))
			must.OK(t, err)
			if c.exact && !bytes.Equal(got, want) {
				t.Errorf("lines differ:\n%s", textDiff(want, got))
			}
			a, b := leaves(t, got), leaves(t, want)
			check.That(t, maps.Equal(a, b), "keys differ: got %q, want %q", a, b)
		})
	}
}

// TestTakeOutExact has every shape edited, and a line put above or a table below by others: undo
// ends with what they would have written without gpuadm, to the byte.
func TestTakeOutExact(t *testing.T) {
	above := func(b []byte) []byte { return append([]byte("# by ansible\n"), b...) }
	below := func(b []byte) []byte {
		lines := joinLines(append(splitLines(b), []byte("\n")), "\n")
		return append(lines, "[debug]\nlevel = \"info\"\n"...)
	}

	done := 0
	for _, c := range corpus(t) {
		if c.name == "24-v2-nvidia-other-case" {
			continue // one of several spellings of a key was taken out, and comes back behind the others
		}
		for _, h := range handlers() {
			for _, d := range []Daemon{{"1.7.24"}, {"2.1.5"}, {"2.4.2"}} {
				target, err := Target(c.tree, d, h)
				if err != nil {
					continue
				}
				before := c.tree.data(target)
				after, err := Edit(c.tree, d, h, target, before)
				had, wrote := len(leaves(t, before)["\x00version"]), len(leaves(t, after)["\x00version"])
				if err != nil || bytes.Equal(before, after) || had != wrote { // a version that gpuadm wrote stays with what others add
					continue
				}
				for _, change := range []func([]byte) []byte{above, below} {
					want := change(before)
					if !isTOML(want) || !isTOML(change(after)) {
						continue
					}
					if got, _, err := engine.TakeOut(before, after, change(after)); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s, containerd %s, default %v: %v\n%s", c.name, d.Version, h.Default, err, textDiff(want, got))
					}
					done++
				}
			}
		}
	}

	check.That(t, done >= 400, "%d files", done)
}

// Headers without a key, as a program leaves them that takes keys out alone, go with gpuadm's edit.
func TestTakeOutOfBareHeaders(t *testing.T) {
	const entry = `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]` + "\n"
	const options = `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]` + "\n"
	before := []byte("version = 3\n")
	after := must.Get(Edit(Tree{Root: File{
		Path: etc + "/config.toml",
		Data: before,
	}}, Daemon{"2.1.5"}, handlers()[0], etc+"/config.toml", before))(t)
	for found, want := range map[string]string{
		"version = 3\n\n" + entry:                               "version = 3\n",
		"version = 3\n\n" + entry + options:                     "version = 3\n",
		"version = 3\n# note\n\n" + entry + options:             "version = 3\n# note\n",
		"version = 3\n\n" + entry + options + "\n[debug]\n":     "version = 3\n\n[debug]\n",
		"version = 3\n[debug]\nlevel = 'info'\n" + entry:        "version = 3\n[debug]\nlevel = 'info'\n",
		"version = 3\n[plugins.x.containerd.runtimes.nvidia]\n": "version = 3\n[plugins.x.containerd.runtimes.nvidia]\n",
	} {
		rest, left, err := engine.TakeOut(before, after, []byte(found))
		check.That(t, err == nil && left == nil && string(rest) == want, "%q: %q, %q %v, want %q", found, rest, left, err, want)
	}
}

// marshalled is the file as nvidia-ctk or any other program writes it: same keys, no comments,
// other order.
func marshalled(t testing.TB, b []byte) []byte {
	tree := must.Get(toml.Values(b))(t)
	out := must.Get(gotoml.Marshal(tree))(t)
	return out
}

// turned has the sections in the opposite order.
func turned(b []byte) []byte {
	var cuts []int
	for _, at := range regexp.MustCompile(`(?m)^[ \t]*\[[^\n]*\][ \t]*(#.*)?$`).FindAllIndex(b, -1) {
		cuts = append(cuts, at[0])
	}
	out := bytes.Clone(b[:cuts[0]])
	cuts = append(cuts, len(b))
	for i := len(cuts) - 2; i >= 0; i-- {
		out = append(out, b[cuts[i]:cuts[i+1]]...)
	}
	return out
}

// What was changed outside gpuadm since stays and is named; TakeOut removes the rest of gpuadm's
// edit.
func TestTakeOutLeaves(t *testing.T) {
	before, after := edited(t, kubeadm)
	const (
		cri    = `plugins."io.containerd.grpc.v1.cri".`
		nvidia = cri + "containerd.runtimes.nvidia"
		name   = cri + "containerd.default_runtime_name"
	)
	swap := func(b []byte, old, now string) []byte {
		t.Helper()
		must.That(t, bytes.Contains(b, []byte(old)), "no %q in\n%s", old, b)
		return bytes.Replace(b, []byte(old), []byte(now), 1)
	}

	for what, c := range map[string]struct {
		found, want []byte
		left        []string
	}{
		"default changed": {
			swap(after, `default_runtime_name = "nvidia"`, `default_runtime_name = "kata"`),
			swap(before, `default_runtime_name = "runc"`, `default_runtime_name = "kata"`),
			[]string{name + ` is "kata" (line 17), gpuadm had set "nvidia"`},
		},
		"default restored": {swap(after, `default_runtime_name = "nvidia"`, `default_runtime_name = "runc"`), before, nil},
		"default gone":     {swap(after, "default_runtime_name = \"nvidia\"", ""), swap(before, "default_runtime_name = \"runc\"", ""), nil},
		"our key gone":     {swap(after, "  enable_cdi = true\n", ""), before, nil},
		"value changed in ours": {
			swap(after, "/usr/bin/nvidia-container-runtime", "/opt/nvidia"), nil,
			[]string{nvidia + ` is there (line 27), with options.BinaryName = "/opt/nvidia", gpuadm had set "/usr/bin/nvidia-container-runtime"`},
		},
		"key added to ours": {
			swap(after, `        BinaryName = "/usr`, "        Root = \"/x\"\n        BinaryName = \"/usr"), nil,
			[]string{nvidia + ` is there (line 27), with options.Root = "/x"`},
		},
		"key gone from ours": {swap(after, "        BinaryName = \"/usr/bin/nvidia-container-runtime\"\n", ""), before, nil},
		"not there":          {append(bytes.Clone(before), "# x\n"...), append(bytes.Clone(before), "# x\n"...), nil},
		"nothing there":      {[]byte("# by ansible\nversion = 2\n"), []byte("# by ansible\nversion = 2\n"), nil},
		"empty":              {[]byte(""), []byte(""), nil},
	} {
		t.Run(what, func(t *testing.T) {
			got, left, err := engine.TakeOut(before, after, c.found)
			must.That(t, err == nil && slices.Equal(left, c.left), "left %q, want %q; %v", left, c.left, err)
			want := c.want
			if want == nil { // the entry stays whole, the default and enable_cdi go
				if want, err = toml.Edit(c.found, []toml.Op{
					toml.Set([]string{"plugins", criV2, "containerd", "default_runtime_name"}, "runc"),
					toml.Unset([]string{"plugins", criV2, "enable_cdi"}),
				}); err != nil {
					t.Fatal(err)
				}
			}

			a, b := leaves(t, got), leaves(t, want)
			check.That(t, maps.Equal(a, b), "keys differ: got %q, want %q", a, b)
			if again, _, err := engine.TakeOut(before, after, got); err != nil || !bytes.Equal(again, got) {
				t.Errorf("taken out twice: %v\n%s", err, textDiff(got, again))
			}
		})
	}

	for _, found := range []string{"version = \n", "a = 1\na = 2\n"} {
		out, _, err := engine.TakeOut(before, after, []byte(found))
		check.That(t, err != nil && strings.HasPrefix(err.Error(), "it is not valid TOML: line ") && out == nil, "%q: %v", found, err)
	}

	out, left, err := engine.TakeOut(after, after, before)
	check.That(t, err == nil && left == nil && bytes.Equal(out, before), "an edit that changed nothing: %q %v", left, err)
}

// The way back has an edit that took keys away.
func TestTakeOutOfRemoval(t *testing.T) {
	before := []byte("[plugins.x.runtimes.nvidia]\na = 1\nb = 2\n")
	after := []byte("[plugins.x.runtimes.nvidia]\nb = 2\n")
	for found, want := range map[string]struct{ rest, left string }{
		"# x\n" + string(after):                       {"# x\n[plugins.x.runtimes.nvidia]\nb = 2\na = 1\n", ""},
		"[plugins.x.runtimes.nvidia]\na = 1\nb = 3\n": {"[plugins.x.runtimes.nvidia]\na = 1\nb = 3\n", ""},
		"[plugins.x.runtimes.nvidia]\na = 5\n":        {"[plugins.x.runtimes.nvidia]\na = 5\n", "plugins.x.runtimes.nvidia.a is 5 (line 2), gpuadm had removed it"},
		"[plugins.x.runtimes.kata]\nb = 2\n":          {"[plugins.x.runtimes.kata]\nb = 2\n", ""},
	} {
		rest, left, err := engine.TakeOut(before, after, []byte(found))
		check.That(t, err == nil && maps.Equal(leaves(t, rest), leaves(t, []byte(want.rest))) && strings.Join(left, "\n") == want.left, "%q: %q %q %v", found, rest, left, err)
	}
}

// A tool that rewrites the whole file removes gpuadm's edit with it, under any name that it writes
// the rest.
func TestTakeOutOfAnotherToolsFile(t *testing.T) {
	before, after := edited(t, kubeadm)
	_, own := edited(t, "00-missing")
	var other []byte
	for _, c := range corpus(t) {
		if c.name == "09-v3-containerd21-default" {
			other = c.tree.Root.Data
		}
	}

	for what, found := range map[string][]byte{
		"another version's default": other,
		"migrated":                  bytes.ReplaceAll(bytes.Replace(after, []byte("version = 2"), []byte("version = 3"), 1), []byte(criV2), []byte(criV3)),
	} {
		rest, left, err := engine.TakeOut(before, after, found)
		if err != nil || left != nil || !bytes.Equal(rest, found) {
			t.Errorf("%s: left %q, %v\n%s", what, left, err, textDiff(found, rest))
		}
	}

	rest, left, err := engine.TakeOut(nil, own, before)
	want := []string{ // what both have
		`plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc is there (line 20), with options.SystemdCgroup = true`,
		`plugins."io.containerd.grpc.v1.cri".containerd.default_runtime_name is "runc" (line 16), gpuadm had set "nvidia"`,
	}
	if err != nil || !slices.Equal(left, want) || !bytes.Equal(rest, before) {
		t.Errorf("gpuadm's own file, rewritten: %q %v\n%s", left, err, textDiff(before, rest))
	}
}

// Without the runtime that is the default the CRI plugin does not load, so it stays.
func TestTakeOutKeepsTheDefault(t *testing.T) {
	tree, d, h := Tree{Root: File{
		Path: etc + "/config.toml",
		Data: []byte("version = 2\n"),
	}}, Daemon{"1.7.24"}, handlers()[0]
	before := tree.Root.Data
	after := must.Get(Edit(tree, d, h, tree.Root.Path, before))(t)
	const runtimes = `plugins."io.containerd.grpc.v1.cri".containerd.runtimes.`
	kata := append(bytes.Clone(after), "["+runtimes+"kata]\nruntime_type = \"io.containerd.kata.v2\"\n"...)
	rest, left, err := engine.TakeOut(before, after, kata)
	check.That(t, err == nil && len(left) == 1 && strings.HasPrefix(left[0], runtimes+"runc is there (line ") && !bytes.Contains(rest, []byte("nvidia")),
		"beside another runtime: %q %v\n%s", left, err, rest)
	named := append(bytes.Clone(after), "["+strings.TrimSuffix(runtimes, ".runtimes.")+"]\ndefault_runtime_name = \"nvidia\"\n"...)
	rest, left, err = engine.TakeOut(before, after, named)
	check.That(t, err == nil && len(left) == 1 && strings.HasPrefix(left[0], runtimes+"nvidia is there (line ") && !bytes.Contains(rest, []byte("runc]")),
		"named as the default: %q %v\n%s", left, err, rest)
}

func TestTakeOutOfOurOwnFile(t *testing.T) {
	_, after := edited(t, "00-missing")
	got, left, err := engine.TakeOut(nil, after, append(bytes.Clone(after), '\n'))
	check.That(t, err == nil && got == nil && left == nil, "a file with nothing else in it: got %q %q %v", got, left, err)
	got, left, err = engine.TakeOut(nil, after, append([]byte("# mine\n"), after...))
	check.That(t, err == nil && left == nil && string(got) == "# mine\n", "a file with a comment: got %q %q %v", got, left, err)
	got, left, err = engine.TakeOut(nil, after, append(bytes.Clone(after), "\n[debug]\nlevel = \"info\"\n"...))
	want := "version = 2\n\n[debug]\nlevel = \"info\"\n"
	check.That(t, err == nil && string(got) == want && len(left) == 1 && left[0] == "version is 2 (line 1), and what was added outside gpuadm is read by it",
		"a file that others write into: got %q %q %v", got, left, err)
}
