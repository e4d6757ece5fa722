// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// outcome is what becomes of one shape for one daemon and handler.
func outcome(t *testing.T, tree Tree, d Daemon, h engine.Handler) string {
	target, err := Target(tree, d, h)
	if err != nil {
		return refusalText(t, err)
	}
	found := tree.data(target)
	out, err := Edit(tree, d, h, target, found)
	if err != nil {
		return refusalText(t, err)
	}
	if bytes.Equal(out, found) && (out == nil) == (found == nil) {
		return "nothing to change in " + target + "\n"
	}
	return "edit " + target + "\n" + textDiff(found, out)
}

func refusalText(t *testing.T, err error) string {
	var r Refused
	if !errors.As(err, &r) {
		t.Errorf("not a refusal: %v", err)
		return err.Error() + "\n"
	}
	told := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &told) && r != "" && len(told.Try) == 1 && told.Try[0] != "", "incomplete refusal: %v", err)
	return fmt.Sprintf("refused (%s): %v\nfix: %s\n", string(r), err, told.Try[0])
}

func TestCorpus(t *testing.T) {
	for _, c := range corpus(t) {
		t.Run(c.name, func(t *testing.T) {
			var order []string
			by := map[string][]string{}
			for i, h := range handlers() {
				for _, d := range daemons() {
					got := outcome(t, c.tree, d, h)
					if by[got] == nil {
						order = append(order, got)
					}
					label := d.Version
					if label == "" {
						label = "unknown"
					}
					if i > 0 {
						label += "+default+cdi"
					}
					by[got] = append(by[got], label)
				}
			}

			var all strings.Builder
			for _, o := range order {
				fmt.Fprintf(&all, "== %s\n%s\n", strings.Join(by[o], " "), o)
			}
			golden(t, c.name, all.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "containerd", name+".txt")
	if *update {
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	if got != string(want) {
		t.Errorf("%s differs (go test ./runtime -update):\n%s", file, textDiff(want, []byte(got)))
	}
}

// lawful makes the edit and holds it against the laws. It returns nil where the tree is refused.
func lawful(t testing.TB, tree Tree, d Daemon, h engine.Handler) []byte {
	t.Helper()
	target, err := Target(tree, d, h)
	if err != nil {
		return nil
	}
	before := tree.data(target)
	after, err := Edit(tree, d, h, target, before)
	if err != nil {
		var r Refused
		must.That(t, errors.As(err, &r), "containerd %q: %v\n%s", d.Version, err, before)
		return nil
	}

	then := tree.withFile(t, target, after)
	if again, err := Edit(then, d, h, target, after); err != nil || !bytes.Equal(again, after) {
		t.Fatalf("containerd %q: a second edit differs: %v\n%s", d.Version, err, textDiff(after, again))
	}
	if to, err := Target(then, d, h); err != nil || to != target {
		t.Fatalf("containerd %q: target was %s, is %s %v after the edit\n%s", d.Version, target, to, err, after)
	}
	checkHandler(t, then, d, h)
	linesKept(t, before, after)
	back, _, err := engine.TakeOut(before, after, after)
	if err != nil || !bytes.Equal(back, before) || (back == nil) != (before == nil) {
		t.Fatalf("containerd %q: taking out gives %v\n%s", d.Version, err, textDiff(before, back))
	}
	return after
}

// checkHandler verifies the handler in what the daemon will see.
func checkHandler(t testing.TB, tree Tree, d Daemon, h engine.Handler) {
	t.Helper()
	c := must.Get(readTree(tree, d))(t)
	containerd := toml.Sub(c.cri, "containerd")
	if name := c.defaultName(); c.reader.merge == mergeWhole && (name == "runc" || name == h.Name) {
		_, ok := toml.Sub(containerd, "runtimes")[name]
		must.That(t, ok, "containerd %q: the default runtime %s is not configured, the node is down", d.Version, name)
	}
	entry, ok := toml.Sub(containerd, "runtimes")[h.Name].(map[string]any)
	must.That(t, ok && toml.String(toml.Sub(entry, "options"), "BinaryName") == h.Binary && isRunc(toml.String(entry, "runtime_type")),
		"containerd %q: the entry is not right: %v", d.Version, entry)
	must.That(t, !h.Default || c.defaultName() == h.Name, "containerd %q: %s is not the default", d.Version, h.Name)
}

// linesKept holds that only lines with a key that may be edited differ; all others are there, in
// order, byte for byte.
func linesKept(t testing.TB, before, after []byte) {
	t.Helper()
	editable := regexp.MustCompile(`(?i)default_runtime_name|enable_cdi|binaryname|runtime_type|runtime_engine|runtime_root|[{}]`)
	a, b := splitLines(before), splitLines(after)
	if n := len(a); n > 0 && !bytes.HasSuffix(before, []byte("\n")) && !bytes.HasSuffix(after, a[n-1]) {
		end := "\n" // the former last line is further up now, and ends like the others
		if bytes.Contains(before, []byte("\r\n")) {
			end = "\r\n"
		}
		a[n-1] = append(bytes.Clone(a[n-1]), end...)
	}

	for _, h := range diffExact(a, b) {
		for _, l := range a[h.a0:h.a1] {
			if !editable.Match(l) {
				t.Fatalf("line %q was lost:\n%s", l, textDiff(before, after))
			}
		}
	}
}

func TestLawsOnCorpus(t *testing.T) {
	for _, c := range corpus(t) {
		t.Run(c.name, func(t *testing.T) {
			for _, d := range daemons() {
				for _, h := range handlers() {
					lawful(t, c.tree, d, h)
				}
			}
		})
	}
}

// TestLawsOnMixedVersions pairs roots and imports of all versions and plugin names: the daemons
// differ most there.
func TestLawsOnMixedVersions(t *testing.T) {
	cri := func(name, runtime string) string {
		return fmt.Sprintf("[plugins.%q.containerd.runtimes.%s]\nruntime_type = %q\n", name, runtime, runcV2)
	}
	edited := 0
	for mix := range 3 * 3 * 4 * 2 * 2 {
		root := fmt.Sprintf("imports = [%q]\nversion = %d\n", []string{"conf.d/*.toml", "conf.d/50-x.toml"}[mix/72], 2+mix%3)
		if n := mix / 3 % 3; n > 0 {
			root += cri([]string{criV2, criV3}[n-1], "runc")
		}
		imported := fmt.Sprintf("version = %d\n", 1+mix/9%4)
		imported += cri([]string{criV2, criV3}[mix/36%2], "x")
		files := map[string][]byte{etc + "/config.toml": []byte(root), etc + "/conf.d/50-x.toml": []byte(imported)}
		for _, d := range daemons() {
			for _, h := range handlers() {
				if lawful(t, layTree(t, files), d, h) != nil {
					edited++
				}
			}
		}
	}

	check.That(t, edited >= 500, "only %d trees were edited", edited)
}

func TestEditElsewhere(t *testing.T) {
	tree := Tree{Root: File{
		Path: "/etc/containerd/config.toml",
		Data: []byte("version = 2\n"),
	}}
	if _, err := Edit(tree, Daemon{"1.7.24"}, handlers()[0], "/etc/other.toml", nil); err == nil {
		t.Error("a file that the daemon does not read was edited")
	}
	// A drop-in that appeared after the tree was read is edited, not replaced.
	tree.Root.Data = []byte("version = 3\nimports = [\"conf.d/*.toml\"]\n")
	out, err := Edit(tree, Daemon{"2.1.5"}, handlers()[0], "/etc/containerd/conf.d/99-gpuadm.toml", []byte("# mine\nversion = 3\n"))
	check.That(t, err == nil && bytes.HasPrefix(out, []byte("# mine\nversion = 3\n\n[plugins.")), "got %v\n%s", err, out)
	huge := File{Path: "/c.toml", Data: bytes.Repeat([]byte("#\n"), maxConfig)}
	var r Refused
	_, err = Target(Tree{Root: huge}, Daemon{}, handlers()[0])
	check.That(t, errors.As(err, &r) && r == RefusedSize, "got %v, want %s", err, RefusedSize)
}

// TestSystemdCgroup: where no entry says how, a new handler follows kubelet's cgroup driver, also
// as the default; what runc's entry says wins.
func TestSystemdCgroup(t *testing.T) {
	const runc = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
	for text, want := range map[string]string{"version = 2\n": "true", runc: "true", runc + "options.SystemdCgroup = false\n": "false"} {
		for _, d := range daemons() {
			for _, h := range handlers() {
				h.Systemd = true
				root := etc + "/config.toml"
				tree := Tree{Root: File{Path: root, Data: []byte(text)}}
				out := must.Get(Edit(tree, d, h, root, []byte(text)))(t)
				got := ""
				for at, value := range leaves(t, out) {
					if strings.HasSuffix(at, "\x00nvidia\x00options\x00SystemdCgroup") {
						got = value
					}
				}

				check.That(t, got == "bool "+want, "containerd %s, default %v: SystemdCgroup is %q, want %s:\n%s", d.Version, h.Default, got, want, out)
			}
		}
	}
}
