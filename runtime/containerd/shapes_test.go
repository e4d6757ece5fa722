// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// shaper writes one and the same kind of configuration in any of the ways TOML has.
type shaper struct {
	*rand.Rand
	root     []string // lines above the first header
	sections [][]string
	quote    string
	step     string
	version  int
}

func (s *shaper) key(name string) string {
	if strings.ContainsAny(name, ". é") || s.IntN(8) == 0 {
		return s.quote + name + s.quote
	}
	return name
}

func (s *shaper) dotted(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = s.key(p)
	}
	return strings.Join(parts, []string{".", ".", ".", " . "}[s.IntN(4)])
}

func (s *shaper) text(v any) string {
	switch v := v.(type) {
	case string:
		return s.quote + v + s.quote
	case toml.Table:
		parts := make([]string, len(v))
		for i, p := range v {
			parts[i] = s.key(p.Key) + " = " + s.text(p.Value)
		}
		return "{" + strings.Join(parts, ",") + "}"
	case []any:
		return "[\n  " + s.quote + "[x]" + s.quote + ", # ]\n]"
	}
	return fmt.Sprint(v)
}

// table writes a table below a header that is there already ("" header: the top of the file).
func (s *shaper) table(lines *[]string, above, path []string, t toml.Table) {
	indent := strings.Repeat(s.step, min(len(above), 4))
	for _, p := range t {
		at := append(slices.Clone(path), p.Key)
		sub, ok := p.Value.(toml.Table)
		how := s.IntN(10)
		switch {
		case !ok:
			*lines = append(*lines, indent+s.dotted(at)+" = "+s.text(p.Value)+s.tail())
		case how == 0:
			*lines = append(*lines, indent+s.dotted(at)+" = "+s.text(sub)+s.tail())
		case how < 3 && len(sub) > 0 && allDotted(sub):
			s.table(lines, above, at, sub)
		case len(path) > 0:
			*lines = append(*lines, indent+s.dotted(at)+" = "+s.text(sub)+s.tail())
		default:
			s.section(append(slices.Clone(above), at...), sub)
		}
	}
}

// allDotted says that a table can be written by dotted keys alone: every one below it comes to a
// value.
func allDotted(t toml.Table) bool {
	for _, p := range t {
		if sub, ok := p.Value.(toml.Table); ok && (len(sub) == 0 || !allDotted(sub)) {
			return false
		}
	}
	return true
}

func (s *shaper) section(path []string, t toml.Table) {
	var lines []string
	values := slices.ContainsFunc(t, func(p toml.Pair) bool {
		_, ok := p.Value.(toml.Table)
		return !ok
	})
	if values || len(t) == 0 || s.IntN(2) == 0 {
		if s.IntN(3) == 0 {
			lines = append(lines, "# "+path[len(path)-1])
		}
		lines = append(lines, strings.Repeat(s.step, min(len(path)-1, 3))+"["+s.dotted(path)+"]"+s.tail())
		at := len(s.sections)
		s.sections = append(s.sections, nil)
		s.table(&lines, path, nil, t)
		if s.IntN(2) == 0 {
			lines = append(lines, "")
		}
		s.sections[at] = lines
		return
	}

	for _, p := range t {
		s.section(append(slices.Clone(path), p.Key), p.Value.(toml.Table))
	}
}

func (s *shaper) tail() string {
	return []string{"", "", "", " ", "\t# [x] = 'y'"}[s.IntN(5)]
}

func (s *shaper) runtimes() toml.Table {
	var t toml.Table
	for _, name := range []string{"runc", "crun", "kata", "nvidia", "é.x"} {
		if s.IntN(3) > 0 {
			continue
		}
		var entry, options toml.Table
		if s.IntN(5) > 0 {
			entry = entry.With("runtime_type", []string{runcV2, runcV2, runcV1, "io.containerd.kata.v2"}[s.IntN(4)])
		}
		if s.IntN(4) == 0 {
			entry = entry.With("pod_annotations", []any{"[x]"})
		}
		named := toml.Table{}.With("SystemdCgroup", true).With("binaryName", "/usr/bin/x")
		for _, p := range named.With("BinaryName", "/usr/bin/nvidia-container-runtime").With("Root", "/run/x") {
			if s.IntN(3) == 0 {
				options = append(options, p)
			}
		}

		if options != nil || s.IntN(3) == 0 {
			entry = entry.With("options", options)
		}
		t = t.With(name, entry)
	}

	return t
}

func (s *shaper) plugin() toml.Table {
	var cri, containerd toml.Table
	if s.IntN(2) == 0 {
		cri = cri.With("sandbox_image", "pause:3")
	}
	if s.IntN(3) == 0 {
		cri = cri.With("enable_cdi", s.IntN(2) == 0)
	}
	if s.IntN(3) > 0 {
		containerd = containerd.With("default_runtime_name", []string{"runc", "crun", "nvidia"}[s.IntN(3)])
	}
	if s.IntN(4) > 0 {
		containerd = containerd.With("runtimes", s.runtimes())
	}
	if containerd != nil || s.IntN(2) == 0 {
		cri = cri.With("containerd", containerd)
	}
	return cri.With("cni", toml.Table{}.With("conf_dir", "/etc/cni"))
}

func (s *shaper) file() []byte {
	names := map[int][]string{2: {criV2, criV2, criV3}, 3: {criV3}, 4: {criV3}}[s.version]
	plugins := toml.Table{}.With("example.one", toml.Table{}.With("x", 1))
	if s.IntN(5) > 0 {
		plugins = plugins.With(names[s.IntN(len(names))], s.plugin())
	}
	whole := toml.Table{}.With("oom_score", -5).With("plugins", plugins).With("metrics", toml.Table{}.With("address", ""))
	s.root = append(s.root, fmt.Sprintf("version = %d", s.version))
	s.table(&s.root, nil, nil, whole)
	s.Shuffle(len(s.sections), func(i, j int) {
		s.sections[i], s.sections[j] = s.sections[j], s.sections[i]
	})
	text := strings.Join(s.root, "\n") + "\n"
	for _, lines := range s.sections {
		if len(lines) > 0 {
			text += strings.Join(lines, "\n") + "\n"
		}
	}

	if s.IntN(4) == 0 {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	if s.IntN(4) == 0 {
		text = strings.TrimRight(text, "\r\n")
	}
	return []byte(text)
}

func TestLawsOnRandomShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	edited := 0
	for range 6000 {
		s := &shaper{
			Rand: rng, quote: []string{`"`, `'`}[rng.IntN(2)], step: []string{"", "  ", "\t"}[rng.IntN(3)],
			version: 2 + rng.IntN(3),
		}
		data := s.file()
		tree := Tree{Root: File{Path: etc + "/config.toml", Data: data}}
		_, err := toml.Values(data)
		must.That(t, err == nil, "the generator wrote no TOML: %v\n%s", err, data)
		d, h := daemons()[rng.IntN(len(daemons()))], handlers()[rng.IntN(2)]
		after := lawful(t, tree, d, h)
		if after == nil || bytes.Equal(after, data) {
			continue
		}
		edited++
		if found := meddle(rng, after); rng.IntN(2) == 0 {
			if _, err := toml.Values(found); err == nil {
				takenOut(t, data, after, found)
			}
		} else {
			takenOut(t, data, after, marshalled(t, after))
		}
	}

	check.That(t, edited >= 3000, "only %d shapes were edited", edited)
}

// TestTextsStayAsParsed makes and takes out edits with texts that are parsed once, of all shapes
// for all daemons: each result is that of texts that are parsed each time, and what is remembered
// stays as it was parsed.
func TestTextsStayAsParsed(t *testing.T) {
	results := map[string]int{}
	for _, c := range corpus(t) {
		for _, d := range daemons() {
			for _, h := range handlers() {
				shared := c.tree
				shared.Texts = new(toml.Texts)
				target, err := Target(shared, d, h)
				if err != nil {
					results["refused"]++
					continue
				}
				found := c.tree.data(target)
				want, werr := Edit(c.tree, d, h, target, found)
				other := append(bytes.Clone(want), "\n# changed outside gpuadm\n"...)
				for range 2 {
					got, err := Edit(shared, d, h, target, found)
					must.That(t, bytes.Equal(got, want) && fmt.Sprint(err) == fmt.Sprint(werr), "%s, %s: %s, %v\nwant %s, %v", c.name, d.Version, got, err, want, werr)
					if werr != nil {
						continue
					}
					rest, left, err := engine.TakeOutOf(shared.Texts)(found, want, other)
					wantRest, wantLeft, wantErr := engine.TakeOut(found, want, other)
					must.That(t, bytes.Equal(rest, wantRest) && reflect.DeepEqual(left, wantLeft) && fmt.Sprint(err) == fmt.Sprint(wantErr),
						"%s, %s: takes out %s, %s, %v\nwant %s, %s, %v", c.name, d.Version, rest, left, err, wantRest, wantLeft, wantErr)
					results["edited and taken out"]++
				}

				for _, text := range append([]File{c.tree.Root, {Data: want}, {Data: other}}, c.tree.Imports...) {
					got, err := shared.Texts.Values(text.Data)
					fresh, freshErr := toml.Values(text.Data)
					if fmt.Sprint(err) != fmt.Sprint(freshErr) || err == nil && !toml.Equal(got, fresh) {
						t.Fatalf("%s, %s: what is remembered was changed: %s", c.name, d.Version, toml.FirstDifference(fresh, got))
					}
				}
			}
		}
	}

	check.That(t, results["edited and taken out"] >= 500, "too few: %v", results)
}
