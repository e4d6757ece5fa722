// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Law 10: others edit the files that gpuadm edits, at any time. Their keys are never lost, and ours
// go and come key by key.

// theirs is what the files would be without gpuadm: as they were at first, with what others have
// done to them since.
type foreignEdits struct {
	first, base map[string]string // texts by name; a file that is not there is not in it
	edited      map[string]bool
	had         map[string]bool // files that held something of theirs, at least for a while
	count       int
}

// shared says whether others may edit a file that gpuadm edits too: it has keys of both.
func shared(name string) bool {
	switch path.Ext(name) {
	case ".toml":
		return true
	case "", ".yaml":
		return strings.HasSuffix(name, "/kubelet") || strings.HasSuffix(name, "/kubelet/config.yaml")
	}
	return false
}

// othersOf begins with the files that an engine would edit on this machine.
func othersOf(t testing.TB, n *simhost.Node, engines ...*converge.Engine) *foreignEdits {
	t.Helper()
	o := &foreignEdits{
		first:  map[string]string{},
		edited: map[string]bool{},
		had:    map[string]bool{},
	}
	for _, e := range engines {
		for _, c := range plan(t, n, e).Changes {
			if c.Kind == "file" && shared(c.Name) {
				o.edited[c.Name] = false
				if text, there := textOf(t, n, c.Name); there {
					o.first[c.Name] = text
				}
			}
		}
	}

	o.base = maps.Clone(o.first)
	return o
}

func (o *foreignEdits) files() []string { return slices.Sorted(maps.Keys(o.edited)) }

func textOf(t testing.TB, n *simhost.Node, name string) (text string, there bool) {
	t.Helper()
	if info, err := n.Stat(name); err != nil || !info.Mode.IsRegular() {
		return "", false
	}
	data := must.Get(n.ReadFile(name))(t)
	return string(data), true
}

// addition is what others write at the end of a file: a comment, and a key that is theirs.
func (o *foreignEdits) addition(name string) string {
	o.count++
	text := fmt.Sprintf("\n# an administrator's note %d\n", o.count)
	switch path.Ext(name) {
	case ".toml":
		return text + fmt.Sprintf("[stream_processors.\"io.example.theirs%d\"]\nreturns = \"kept\"\n", o.count)
	case ".yaml":
		return text + fmt.Sprintf("theirs%d: kept\n", o.count)
	}

	return text + fmt.Sprintf("THEIRS_%d=\"kept\"\n", o.count)
}

func (o *foreignEdits) write(t testing.TB, n *simhost.Node, name, text string) {
	t.Helper()
	attr := host.Attr{Mode: 0o644}
	if info, err := n.Stat(name); err == nil {
		attr = info.Attr()
	}
	must.OK(t, n.WriteFile(name, []byte(text), attr))
	o.edited[name] = true
	_, theirs := o.base[name]
	o.had[name] = o.had[name] || theirs
}

// An edit is what others do to a file that is there.
type edit func(o *foreignEdits, t testing.TB, n *simhost.Node, name, text string)

// appends is an administrator's.
func appends(o *foreignEdits, t testing.TB, n *simhost.Node, name, text string) {
	t.Helper()
	added := o.addition(name)
	if _, there := o.base[name]; !there {
		o.base[name] = versionLine.FindString(text)
	}
	o.base[name] += added
	o.write(t, n, name, text+added)
}

// versionLine is how containerd reads a file. Where gpuadm has made the file, what others add to it
// is read by gpuadm's version: it may stay for their sake.
var versionLine = regexp.MustCompile(`(?m)^version = \d\n`)

// rewrites is a tool's, which has a template and knows nothing of our keys.
func rewrites(o *foreignEdits, t testing.TB, n *simhost.Node, name, text string) {
	t.Helper()
	template, there := o.first[name]
	if !there {
		template = versionLine.FindString(text)
	}
	o.base[name] = template + o.addition(name)
	o.write(t, n, name, o.base[name])
}

var edits = map[string]edit{"appended": appends, "rewritten": rewrites}

// edit edits all files that are there.
func (o *foreignEdits) edit(t testing.TB, n *simhost.Node, how edit) {
	t.Helper()
	for _, name := range o.files() {
		if text, there := textOf(t, n, name); there {
			how(o, t, n, name, text)
		}
	}
}

// keysOf are a file's keys with their values, whatever their order and the comments between.
func keysOf(t testing.TB, name, text string) map[string]string {
	t.Helper()
	keys, parsed := map[string]string{}, map[string]any{}
	var err error
	switch path.Ext(name) {
	case ".toml":
		err = toml.Unmarshal([]byte(text), &parsed)
	case ".yaml":
		err = yaml.Unmarshal([]byte(text), &parsed)
	default:
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
				keys[key] = value
			}
		}
	}

	must.That(t, err == nil, "%s does not parse: %v\n%s", name, err, text)
	var walk func(at string, v any)
	walk = func(at string, v any) {
		table, ok := v.(map[string]any)
		if !ok {
			keys[at] = fmt.Sprint(v)
		}
		for key, below := range table {
			walk(at+"/"+key, below)
		}
	}

	walk("", parsed)
	delete(keys, "")
	return keys
}

// fresh is the machine as if gpuadm had never been there, and others had done the same.
func (o *foreignEdits) fresh(t testing.TB, m machine) *simhost.Node {
	t.Helper()
	n := m.boot(t)
	for _, name := range o.files() {
		text, there := o.base[name]
		switch _, err := n.Lstat(name); {
		case there && o.edited[name]:
			must.OK(t, mkdirs(n, path.Dir(name)))
			o.write(t, n, name, text)
		case !there && err == nil:
			must.OK(t, n.Remove(name))
		}
	}

	return n
}

func mkdirs(n *simhost.Node, dir string) error {
	if _, err := n.Stat(dir); err == nil {
		return nil
	}
	if err := mkdirs(n, path.Dir(dir)); err != nil {
		return err
	}
	return n.Mkdir(dir, host.Attr{Mode: fs.FileMode(0o755)})
}

// like holds that a machine is like another: byte by byte, but for the files that others have
// edited. These have the same keys, and the folders that hold them may be there for their sake:
// also where an undo left one to them, and they removed their file since.
func (o *foreignEdits) like(t testing.TB, what string, want, got *simhost.Node) {
	t.Helper()
	clean(t, what, got)
	skip := []string{converge.Home, "/run", "/proc"}
	apart := map[string]bool{}
	for _, name := range o.files() {
		if !o.edited[name] {
			continue
		}
		skip = append(skip, name)
		wanted, there := textOf(t, want, name)
		is, found := textOf(t, got, name)
		must.That(t, there == found, "%s: %s is there: %t, want %t", what, name, found, there)
		wantKeys, keys := keysOf(t, name, wanted), keysOf(t, name, is)
		if _, had := o.first[name]; !had {
			delete(wantKeys, "/version")
			delete(keys, "/version")
		}
		diff := cmp.Diff(wantKeys, keys)
		must.That(t, diff == "", "%s: keys of %s (-want +got):\n%s", what, name, diff)
		for dir := path.Dir(name); (there || o.had[name]) && dir != "/"; dir = path.Dir(dir) {
			apart[dir] = true
		}
	}

	lines := func(n *simhost.Node) string {
		var b strings.Builder
		for line := range strings.Lines(n.Tree(skip...)) {
			if name, _, _ := strings.Cut(line, " "); !apart[name] {
				b.WriteString(line)
			}
		}

		return b.String()
	}

	compare(t, what, lines(want), lines(got))
}

// After each power cut others edit every file, and then comes any command.
func TestForeignEditAfterAPowerCut(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		if len(othersOf(t, m.boot(t), e()).files()) == 0 {
			return
		}
		s := run(t, m, e)
		for _, c := range cutLaws {
			for _, how := range slices.Sorted(maps.Keys(edits)) {
				t.Run(c.name+", "+how, func(t *testing.T) {
					from, many := s.span(c)
					for _, at := range sample(t, many, 1) {
						s.edited(t, c, from+at, how, fmt.Sprintf("%s at touch %d of %d, %s", c.name, at, many, how))
					}
				})
			}
		}
	})
}

// edited cuts, edits, and goes on.
func (s straight) edited(t *testing.T, c cutLaw, touch int, how, what string) {
	t.Helper()
	ctx := context.Background()
	n := s.cut(t, c.name+how, touch, losses(touch)[0])
	if n == nil {
		return
	}
	first := s.machine.boot(t)
	o := othersOf(t, first, s.e())
	began := !c.undoing || undoing(t, s, n, what)
	o.edit(t, n, edits[how])
	applies := !c.undoing || !began
	e, err := s.e(), error(nil)
	switch _, then, _ := strings.Cut(c.name, ", then "); then {
	case "apply":
		_, err = e.Apply(ctx, n)
		applies = true
	case "boot":
		e.Unattended = true
		_, err = e.Apply(ctx, n)
	case "undo":
		_, err = e.Undo(ctx, n, "", nil)
		applies = false
	default:
		_, err = e.Undo(ctx, n, "all", nil)
		applies = false
	}

	must.That(t, err == nil, "%s: %v", what, err)
	if applies {
		want := o.fresh(t, s.machine)
		apply(t, want, s.e())
		o.like(t, what, want, n)
		undoAfter(t, n, s.e(), "all", what)
	}

	o.like(t, what+", undone", o.fresh(t, s.machine), n)
}

// A stage that failed and was rolled back has left nothing of gpuadm's: an undo has nothing to take
// out, whatever others did since.
func TestForeignEditAfterARollBack(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		if len(othersOf(t, m.boot(t), e()).files()) == 0 {
			return
		}
		s := run(t, m, e)
		for _, how := range slices.Sorted(maps.Keys(edits)) {
			for _, to := range []string{"all", ""} {
				t.Run(fmt.Sprintf("%s, undone to %q", how, to), func(t *testing.T) {
					for _, at := range sample(t, s.made, 2) {
						n := m.boot(t)
						o := othersOf(t, n, e())
						n.Fail(at, syscall.EIO)
						if _, err := e().Apply(context.Background(), n); err == nil {
							continue
						}
						n.Reboot() // nothing fails any more
						o.edit(t, n, edits[how])
						what := fmt.Sprintf("failed at touch %d, %s", at, how)
						undoAfter(t, n, e(), to, what)
						o.like(t, what, o.fresh(t, m), n)
					}
				})
			}
		}
	})
}

// shrinks are specs, and what they become.
var shrinks = map[string][2]string{
	"default dropped": {sections["default"], sections["handler"]},
	"handler renamed": {sections["handler"], sections["other"]},
	"labels dropped":  {labelsB + taint, "[node]\nstartup_taint = \"none\"\n"},
	"label dropped":   {labelsB, labelsA},
	"nothing dropped": {sections["default"] + labelsA, sections["default"] + labelsA},
}

// A spec is applied, others edit, it shrinks, others edit, and all is undone; with and without the
// first and the second edit, run by run and at once. What is no longer asked for goes, others' keys
// stay, and undo never fails for want of something to undo.
func TestForeignEditsAroundAShrinkingSpec(t *testing.T) {
	tested := 0
	for _, m := range machines(t) {
		for _, name := range slices.Sorted(maps.Keys(shrinks)) {
			texts := shrinks[name]
			e := func(i int) *converge.Engine { return (wish{text: texts[i]}).engine(t) }
			if len(plan(t, m.boot(t), e(0)).Cannot())+len(plan(t, m.boot(t), e(1)).Cannot()) > 0 || len(othersOf(t, m.boot(t), e(0)).files()) == 0 {
				continue
			}
			tested++
			t.Run(m.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				for _, i := range sample(t, 1<<4, 5) {
					how, between, after, stepwise := "appended", i&2 != 0, i&4 != 0, i&8 != 0
					if i&1 != 0 {
						how = "rewritten"
					}
					t.Run(fmt.Sprintf("%s, between %t, after %t, stepwise %t", how, between, after, stepwise), func(t *testing.T) {
						shrunk(t, m, e, edits[how], between, after, stepwise)
					})
				}
			})
		}
	}

	check.That(t, tested >= 20, "only %d machines and specs were tested", tested)
}

func shrunk(t *testing.T, m machine, e func(int) *converge.Engine, how edit, between, after, stepwise bool) {
	n := m.boot(t)
	o := othersOf(t, n, e(0), e(1))
	apply(t, n, e(0))
	if between {
		o.edit(t, n, how)
	}
	apply(t, n, e(1))
	want := o.fresh(t, m)
	apply(t, want, e(1))
	o.like(t, "applied one after the other", want, n)
	if after {
		o.edit(t, n, how)
	}
	if stepwise {
		undoAfter(t, n, e(1), "", "the last run")
		clean(t, "the last run undone", n)
	}
	undoAfter(t, n, e(1), "all", "all runs")
	o.like(t, "all undone", o.fresh(t, m), n)
	res := undoAfter(t, n, e(1), "all", "once more")
	check.That(t, res.Run == "", "after undo of all, undo has undone %v", res.Made)
}
