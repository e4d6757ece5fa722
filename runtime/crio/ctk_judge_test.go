// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
)

var (
	ctkComment = regexp.MustCompile(`(?m)#.*$`)
	ctkInteger = regexp.MustCompile(`\b[0-9]{8,}\b`)
	ctkKey     = regexp.MustCompile(`(?m)^[ \t]*\[[^\]]+\]$|"[^"]+":|^[ \t]*[A-Za-z_]+ *=`)
)

// ctkLost says what of an owner's file is not in it any more. It goes by the text, so that it owes
// nothing to the editors.
func ctkLost(kind, before, after string) (lost []string) {
	inOrder := func(of *regexp.Regexp) (all, ordered bool) {
		all, ordered = true, true
		rest := after
		for _, m := range of.FindAllString(before, -1) {
			m = strings.TrimSpace(m)
			all = all && strings.Contains(after, m)
			_, found, there := strings.Cut(rest, m)
			ordered = ordered && there
			rest = found
		}

		return all, ordered
	}

	keys, order := inOrder(ctkKey)
	integers, _ := inOrder(ctkInteger)
	comments, layout := true, true
	if kind == "crio" {
		comments, _ = inOrder(ctkComment)
	}
	for line := range strings.Lines(before) {
		// A line may get more at its end; and the default is asked for.
		line = strings.TrimRight(line, " \t\r\n,]}")
		if !strings.Contains(line, "default-runtime") && !strings.Contains(line, "default_runtime") {
			layout = layout && strings.Contains("\n"+after, "\n"+line)
		}
	}

	for _, is := range []struct {
		kept bool
		name string
	}{{keys, "keys"}, {order, "order"}, {comments, "comments"}, {integers, "integers"}, {layout, "layout"}} {
		if !is.kept {
			lost = append(lost, is.name)
		}
	}

	return lost
}

// dockerWrong says what Docker would read otherwise, besides the runtime, the default and CDI where
// those were asked for and not there.
func dockerWrong(before, after []byte, h engine.Handler) []string {
	b, a := ctkLeaves(before), ctkLeaves(after)
	entry := "runtimes." + h.Name
	if a[entry+".path"] == "" {
		return []string{"no handler"}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(b)), func(key string) bool { return strings.HasPrefix(key, entry+".") }) {
		maps.DeleteFunc(a, func(key, value string) bool {
			return strings.HasPrefix(key, entry+".") && (key != entry+".path" || value == h.Binary)
		})
	}

	if _, said := b["features.cdi"]; !said && a["features.cdi"] == "true" {
		delete(a, "features.cdi")
	}
	if h.Default && a["default-runtime"] == h.Name {
		delete(a, "default-runtime")
		delete(b, "default-runtime")
	}
	return ctkChanged(b, a)
}

// crioWrong says what CRI-O would read otherwise, besides the handler and the default that were
// asked for; and what the handler lacks that the default runtime has.
func crioWrong(in ctkInput, files map[string][]byte, h engine.Handler) (wrong []string) {
	before, err := readFiles(in.files, in.version)
	if err != nil {
		return []string{err.Error()}
	}
	after, err := readFiles(crioTree(files), in.version)
	if err != nil {
		return []string{err.Error()}
	}
	wantDefault := before.byDefault
	if h.Default {
		wantDefault = h.Name
	}
	if after.byDefault != wantDefault {
		wrong = append(wrong, "default is "+after.byDefault)
	}
	for _, name := range slices.Sorted(maps.Keys(before.runtimes)) {
		if is, there := after.runtimes[name]; !there {
			wrong = append(wrong, name+" is lost")
		} else if !toml.Equal(is, before.runtimes[name]) {
			wrong = append(wrong, name+" is changed")
		}
	}

	entry := after.runtimes[h.Name]
	if entry["runtime_path"] != h.Binary {
		wrong = append(wrong, "no handler")
	}
	base := before.runtimes[before.byDefault]
	for _, c := range toml.Diff(base, entry, nil) {
		if before.from[before.byDefault] != "" && c.Old != nil && c.Path[0] != "runtime_path" { // CRI-O's own entry is not a file's
			wrong = append(wrong, "handler without "+c.Path[0])
		}
	}
	// What is beside the table of runtimes is in the owner's files, each on its own.
	for _, f := range in.files {
		b, _ := toml.Values(f.Data)
		a, _ := toml.Values(files[f.Path])
		for _, m := range []map[string]any{b, a} {
			if settings := toml.Sub(m, "crio", "runtime"); settings != nil {
				delete(settings, "runtimes")
				delete(settings, "default_runtime")
			}
		}

		for _, c := range toml.Diff(b, a, nil) {
			wrong = append(wrong, toml.ShowPath(c.Path)+" is changed")
		}
	}

	return wrong
}

// ctkLeaves are the values of a JSON text by their paths, numbers letter by letter.
func ctkLeaves(text []byte) map[string]string {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var v any
	leaves := map[string]string{}
	if d.Decode(&v) == nil {
		ctkFlatten(leaves, "", v)
	}
	return leaves
}

func ctkFlatten(leaves map[string]string, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			ctkFlatten(leaves, strings.TrimPrefix(at+"."+key, "."), value)
		}
	case []any:
		leaves[at] = "[]"
		for i, value := range v {
			ctkFlatten(leaves, fmt.Sprint(at, ".", i), value)
		}
	default:
		leaves[at] = fmt.Sprint(v)
	}
}

func ctkChanged(before, after map[string]string) (changed []string) {
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		b, was := before[key]
		a, is := after[key]
		switch {
		case !is:
			changed = append(changed, key+" is lost")
		case !was:
			changed = append(changed, key+" is new")
		case a != b:
			changed = append(changed, key+" is "+a)
		}
	}

	return changed
}

// TestCTKJudge: the judge of the table sees what an edit can do wrong.
func TestCTKJudge(t *testing.T) {
	h := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	const json = "{\n  \"b\": 12345678901,\n  \"a\": {\"x\": 1}\n}"
	entry := `"runtimes": {"nvidia": {"path": "` + engine.Binary + `"}}`
	for what, c := range map[string]struct{ after, lost, wrong string }{
		"right":    {"{\n  \"b\": 12345678901,\n  \"a\": {\"x\": 1}, " + entry + "\n}", "", ""},
		"order":    {"{\n  \"a\": {\"x\": 1},\n  \"b\": 12345678901,\n" + entry + "}", "order", ""},
		"key":      {"{\n  \"b\": 12345678901, " + entry + "}", "keys order layout", "a.x is lost"},
		"integer":  {"{\n  \"b\": 12345678900,\n  \"a\": {\"x\": 1}," + entry + "}", "integers layout", "b is 12345678900"},
		"tabs":     {"{\n\t\"b\": 12345678901,\n\t\"a\": {\"x\": 1}," + entry + "}", "layout", ""},
		"other":    {"{\n  \"b\": 12345678901,\n  \"a\": {\"x\": 1}, \"debug\": true, " + entry + "}", "", "debug is new"},
		"no entry": {json, "", "no handler"},
	} {
		lost, wrong := strings.Join(ctkLost("docker", json, c.after), " "), strings.Join(dockerWrong([]byte(json), []byte(c.after), h), " ")
		check.That(t, lost == c.lost && wrong == c.wrong, "%s: loses %q, wrong %q; want %q, %q", what, lost, wrong, c.lost, c.wrong)
	}

	lost := ctkLost("crio", "# why\na = 1\n", "a = 1\n")
	check.That(t, strings.Join(lost, " ") == "comments layout", "a comment: %q", lost)
	bad := ctkResult{
		lost:    []string{"order"},
		wrong:   []string{"x"},
		added:   9,
		removed: 9,
	}
	got := bad.worse(ctkResult{out: true})
	check.That(t, len(got) == 5, "worse in five ways: %q", got)
	got = (ctkResult{refused: "no"}).worse(ctkResult{})
	check.That(t, len(got) == 1, "a refusal of what the other does right: %q", got)
	got = (ctkResult{out: true}).worse(bad)
	check.That(t, got == nil, "better: %q", got)
}
