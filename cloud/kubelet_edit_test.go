// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/alloc"
)

var (
	gpuTaint = spec.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}
	newTaint = spec.Taint{Key: "readiness.k8s.io/gpu", Effect: "NoSchedule"}
)

const extra = "KUBELET_EXTRA_ARGS"

// Each file of KEY=VALUE lines gets a=1 and b=2, and that is all that changes in it.
func TestLabelsInVariable(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"no file":          {"", extra + "=\"--node-labels=a=1,b=2\"\n"},
		"empty":            {extra + "=\n", extra + "=--node-labels=a=1,b=2\n"},
		"empty quotes":     {extra + "=\"\"\n", extra + "=\"--node-labels=a=1,b=2\"\n"},
		"no newline":       {extra + "=", extra + "=--node-labels=a=1,b=2"},
		"other variable":   {"# c\nX=1", "# c\nX=1\n" + extra + "=\"--node-labels=a=1,b=2\""},
		"bare flags":       {extra + "=--v=2 --x=y\n", extra + "=--v=2 --x=y --node-labels=a=1,b=2\n"},
		"quoted flags":     {extra + "=\"--v=2\" # no comment\n", ""},
		"double":           {"; c\n" + extra + "=\"--v=2\"\nY=2\n", "; c\n" + extra + "=\"--v=2 --node-labels=a=1,b=2\"\nY=2\n"},
		"single":           {extra + "='--v=2 '\n", extra + "='--v=2 --node-labels=a=1,b=2 '\n"},
		"union":            {extra + "=--node-labels=x=y,a=0 --v=2\n", extra + "=--node-labels=x=y,a=1,b=2 --v=2\n"},
		"apart":            {extra + "=\"--node-labels x=y --v=2\"\n", extra + "=\"--node-labels x=y,a=1,b=2 --v=2\"\n"},
		"quotes inside":    {extra + "=--v=2 --node-labels=\"x=y\" --z\n", extra + "=--v=2 --node-labels=\"x=y,a=1,b=2\" --z\n"},
		"twice":            {extra + "=--node-labels=x=y --node-labels=z=1\n", extra + "=--node-labels=x=y --node-labels=z=1,a=1,b=2\n"},
		"last counts":      {extra + "=--a\n" + extra + "=--b\n", extra + "=--a\n" + extra + "=--b --node-labels=a=1,b=2\n"},
		"goes on":          {extra + "=--v=2 \\\n  --x=y\nZ=1\n", extra + "=--v=2 \\\n  --x=y --node-labels=a=1,b=2\nZ=1\n"},
		"carriage returns": {"A=1\r\n" + extra + "=--v=2\r\n", "A=1\r\n" + extra + "=--v=2 --node-labels=a=1,b=2\r\n"},
		"stands":           {extra + "=--node-labels=b=2,x=y,a=1\n", extra + "=--node-labels=b=2,x=y,a=1\n"},
		"escaped":          {extra + "=\"--x=\\\"q\\\" --node-labels=a=\\\"0\\\"\"\n", extra + "=\"--x=\\\"q\\\" --node-labels=a=1\\\",b=2\\\"\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var before []byte
			if name != "no file" {
				before = []byte(c.before)
			}
			got, err := kubeletEdited(before, extra, kubeletLabelFlag(), []string{"a=1", "b=2"})
			if c.after == "" { // no such comments are known: the words are flags
				c.after = strings.Replace(c.before, "# no comment", "# no comment --node-labels=a=1,b=2", 1)
			}
			if err != nil || string(got) != c.after {
				t.Fatalf("got %q, %v\nwant %q", got, err, c.after)
			}
			again, err := kubeletEdited(got, extra, kubeletLabelFlag(), []string{"a=1", "b=2"})
			if err != nil || string(again) != string(got) {
				t.Errorf("twice: %q, %v", again, err)
			}
			if c.before == c.after {
				return
			}
			foreign := "# somebody else's\nOTHER=1\n"
			out, left, err := TakeOut(before, got, []byte(foreign+string(got)))
			if err != nil || left != nil || string(out) != foreign+c.before && name != "escaped" {
				t.Errorf("taken out: %q, left %q, %v", out, left, err)
			}
		})
	}
}

func TestVariableRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"open quote": {extra + "=\"--v=2\n", "not closed"},
		"backslash":  {extra + "=--v=2 \\", "ends in a backslash"},
		"comment":    {"# what \\\n" + extra + "=--v=2\n", "versions disagree"},
	} {
		if out, err := kubeletEdited([]byte(c.text), extra, kubeletLabelFlag(), []string{"a=1"}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

func TestTaintsInVariable(t *testing.T) {
	before := extra + "=\"--register-with-taints=dead=1:NoExecute --register-with-taints=x:NoSchedule,nvidia.com/gpu=absent:NoSchedule\"\n"
	want := extra + "=\"--register-with-taints=dead=1:NoExecute --register-with-taints=x:NoSchedule,nvidia.com/gpu=present:NoSchedule,readiness.k8s.io/gpu:NoSchedule\"\n"
	got, err := kubeletEdited([]byte(before), extra, kubeletTaintFlag(), kubeletTaintParts([]spec.Taint{gpuTaint, newTaint}))
	if err != nil || string(got) != want {
		t.Fatalf("%q, %v", got, err)
	}
	found := strings.Replace(want, "dead=1", "dead=2", 1) + "# seen\n"
	out, left, err := TakeOut([]byte(before), got, []byte(found))
	if back := strings.Replace(before, "dead=1", "dead=2", 1) + "# seen\n"; err != nil || left != nil || string(out) != back {
		t.Errorf("%q, left %q, %v", out, left, err)
	}
	out, left, err = TakeOut([]byte(before), got, []byte(strings.Replace(want, "present", "gone", 1)))
	if err != nil || string(out) != strings.Replace(strings.Replace(want, "present", "gone", 1), ",readiness.k8s.io/gpu:NoSchedule", "", 1) ||
		!slices.Equal(left, []string{"nvidia.com/gpu=gone:NoSchedule is there, gpuadm had set nvidia.com/gpu=present:NoSchedule"}) {
		t.Errorf("somebody's change was taken for ours: %q, left %q, %v", out, left, err)
	}
}

// confStyles are KubeletConfigurations in every style there is; %s is where taints of others stand.
func confStyles() map[string]string {
	const head = "# kubeadm wrote this\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	return map[string]string{
		"missing":        head + "clusterDNS:\n- 10.96.0.10\n",
		"no newline":     head + "maxPods: 110",
		"empty":          head + "registerWithTaints: []  # none\nmaxPods: 110\n",
		"nothing":        head + "registerWithTaints:   # none\nmaxPods: 110\n",
		"null":           head + "registerWithTaints: null # none\nmaxPods: 110\n",
		"flow":           head + "registerWithTaints: [{key: a, effect: NoSchedule}, {key: nvidia.com/gpu, value: absent, effect: NoSchedule}] # two\nmaxPods: 110\n",
		"flow lines":     head + "registerWithTaints: [\n  {key: a, effect: NoSchedule},  # ö a,b]\n  {effect: 'NoSchedule', key: \"nvidia.com/gpu\"}\n]\nmaxPods: 110\n",
		"flow comma":     head + "registerWithTaints: [{key: a, effect: NoSchedule,},]\nmaxPods: 110\n",
		"block":          head + "registerWithTaints:\n- key: a # first\n  effect: NoSchedule\n# between\n- effect: NoSchedule\n  key: nvidia.com/gpu # second\n# after\nmaxPods: 110\n",
		"block value":    head + "registerWithTaints:\n  - key: nvidia.com/gpu\n    value: \"absent\" # old\n    effect: NoSchedule\nmaxPods: 110\n",
		"block no value": head + "registerWithTaints:\n  - key: nvidia.com/gpu\n    value:\n    effect: NoSchedule\nmaxPods: 110\n",
		"block flow":     head + "registerWithTaints:\n  - {key: a, effect: NoSchedule}\nmaxPods: 110\n",
		"block last":     head + "registerWithTaints:\n- effect: NoSchedule\n  key: a",
		"carriage":       strings.ReplaceAll(head+"registerWithTaints:\n- effect: NoSchedule\n  key: a\nmaxPods: 110\n", "\n", "\r\n"),
		"indented":       "  kind: KubeletConfiguration\n  maxPods: 110\n",
		"start":          "---\nkind: KubeletConfiguration\nnodeStatusReportFrequency: |\n  text\n  é\n",
		"json":           "{\n    \"kind\": \"KubeletConfiguration\",\n    \"maxPods\": 250\n}\n",
		"json line":      `{"kind": "KubeletConfiguration", "featureGates": {"a": [1, {"b": "]}"}]}}`,
		"json empty":     `{"kind":"KubeletConfiguration","registerWithTaints":[]}`,
		"json null":      `{"registerWithTaints" : null, "kind":"KubeletConfiguration"}`,
		"json taints":    "{\n  \"registerWithTaints\": [\n    {\"key\": \"karpenter.sh/unregistered\", \"effect\": \"NoExecute\"}\n  ],\n  \"kind\": \"é\"\n}",
		"json tabs":      "{\n\t\"registerWithTaints\": [\n\t\t{\n\t\t\t\"key\": \"nvidia.com/gpu\",\n\t\t\t\"effect\": \"NoSchedule\"\n\t\t}\n\t]\n}\n",
		"flow map":       "{kind: KubeletConfiguration, maxPods: 1}\n",
	}
}

// asKubelet reads a configuration as a stranger to our code does: the taints, and all the rest.
func asKubelet(t *testing.T, data []byte) ([]spec.Taint, map[string]any) {
	t.Helper()
	var all map[string]any
	if err := yaml.Unmarshal(data, &all); err != nil {
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatalf("%v in\n%s", err, data)
		}
	}
	var c struct {
		List []struct{ Key, Value, Effect string } `yaml:"registerWithTaints" json:"registerWithTaints"`
	}
	text, err := json.Marshal(map[string]any{"registerWithTaints": all["registerWithTaints"]})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	var list []spec.Taint
	for _, x := range c.List {
		list = append(list, spec.Taint(x))
	}
	delete(all, "registerWithTaints")
	return list, all
}

func taintUnion(have, want []spec.Taint) map[string]spec.Taint {
	all := map[string]spec.Taint{}
	for _, t := range append(slices.Clone(have), want...) {
		all[t.Key+":"+t.Effect] = t
	}
	return all
}

func checkConfEdit(t *testing.T, before []byte, want []spec.Taint) []byte {
	t.Helper()
	after, err := kubeletConfEdited(before, want)
	if err != nil {
		t.Fatalf("%v in\n%s", err, before)
	}
	had, rest := asKubelet(t, before)
	has, left := asKubelet(t, after)
	if !maps.Equal(taintUnion(had, want), taintUnion(has, nil)) || len(has) != len(taintUnion(had, want)) {
		t.Errorf("taints %v, want %v and %v\n%s", has, had, want, after)
	}
	if fmt.Sprint(rest) != fmt.Sprint(left) {
		t.Errorf("the rest was %v, is %v", rest, left)
	}
	again, err := kubeletConfEdited(after, want)
	if err != nil || string(again) != string(after) {
		t.Errorf("edited twice: %v\n%s", err, again)
	}
	return after
}

func TestTaintsInConfiguration(t *testing.T) {
	want := []spec.Taint{gpuTaint, newTaint}
	for name, before := range confStyles() {
		t.Run(name, func(t *testing.T) {
			after := checkConfEdit(t, []byte(before), want)
			for line := range strings.SplitSeq(before, "\n") { // comments stay, each at its place
				if _, comment, ok := strings.Cut(line, "#"); ok && !strings.Contains(string(after), "#"+comment) {
					t.Errorf("the comment %q is gone:\n%s", comment, after)
				}
			}
			out, left, err := TakeOut([]byte(before), after, append(slices.Clone(after), "\n \n"...))
			if name == "block last" || name == "no newline" || name == "json line" {
				return // our last line ends as the file did
			}
			if err != nil || left != nil || string(out) != before+"\n \n" {
				t.Errorf("taken out: %v, left %q\n%q\nwant\n%q", err, left, out, before)
			}
		})
	}
}

// What we added is found by what it says, too, where somebody has written the list anew.
func TestTakenOutOfAnotherStyle(t *testing.T) {
	want := []spec.Taint{gpuTaint, newTaint}
	before := []byte("kind: a\nregisterWithTaints:\n- key: x\n  effect: NoSchedule\n- key: nvidia.com/gpu\n  value: old\n  effect: NoSchedule\n")
	after := checkConfEdit(t, before, want)
	for name, found := range confStyles() {
		if strings.HasPrefix(name, "json") && name != "json taints" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			edited := checkConfEdit(t, []byte(found), want)
			out, stays, err := TakeOut(before, after, edited)
			if err != nil || stays != nil {
				t.Fatalf("%v, left %q in\n%s", err, stays, edited)
			}
			had, rest := asKubelet(t, []byte(found))
			has, left := asKubelet(t, out)
			old := gpuTaint
			old.Value = "old"
			if !maps.Equal(taintUnion(had, []spec.Taint{old}), taintUnion(has, nil)) || fmt.Sprint(rest) != fmt.Sprint(left) {
				t.Errorf("left %v of\n%s\n%s", has, edited, out)
			}
		})
	}
}

func TestConfigurationRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"anchor":        {"a: &x 1\nb: *x\n", "anchor"},
		"merge":         {"a: {b: 1}\n<<: {c: 1}\n", "anchor"},
		"two documents": {"a: 1\n---\nb: 2\n", "more than one document"},
		"no map":        {"- a\n", "no map"},
		"empty":         {"# only this\n", "empty"},
		"no list":       {"registerWithTaints: yes\n", "no list"},
		"no taint":      {"registerWithTaints:\n- a\n", "no taint"},
		"twice":         {"a: 1\na: 2\n", "already defined"},
		"twice in JSON": {`{"a": 1, "a": 2}`, "twice"},
		"end":           {"a: 1\n...\n", "three dots"},
		"latin":         {"a: \xe9\n", "UTF-8"},
	} {
		if out, err := kubeletConfEdited([]byte(c.text), []spec.Taint{gpuTaint}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

func randomTaints(rnd *rand.Rand) (list []spec.Taint) {
	keys := []string{"a", "nvidia.com/gpu", "readiness.k8s.io/gpu", "y", "1", "true", "x.y/z"}
	values := []string{"", "present", "true", "1", "0x1f", "No", "a.b_c-D"}
	effects := []string{"NoSchedule", "NoExecute", "PreferNoSchedule"}
	for range rnd.IntN(5) {
		t := spec.Taint{Key: keys[rnd.IntN(len(keys))], Value: values[rnd.IntN(len(values))], Effect: effects[rnd.IntN(3)]}
		if !slices.ContainsFunc(list, func(o spec.Taint) bool { return confTaintID(o) == confTaintID(t) }) {
			list = append(list, t)
		}
	}
	return list
}

// Whatever stands there and whatever we want: the union results, an edit done twice is one, and taking it out leaves what stood there.
func TestRandomTaints(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	styles := confStyles()
	names := slices.Sorted(maps.Keys(styles))
	for range 600 {
		before := []byte(styles[names[rnd.IntN(len(names))]])
		before, err := kubeletConfEdited(before, randomTaints(rnd))
		if err != nil {
			t.Fatal(err)
		}
		want := randomTaints(rnd)
		after := checkConfEdit(t, before, want)
		if string(after) == string(before) {
			continue
		}
		other := checkConfEdit(t, after, []spec.Taint{{Key: "somebody.else/s", Effect: "NoSchedule"}})
		out, stays, err := TakeOut(before, after, other)
		if err != nil || stays != nil {
			t.Fatalf("%v\nbefore\n%s\nafter\n%s\nfound\n%s", err, before, after, other)
		}
		had, rest := asKubelet(t, before)
		has, left := asKubelet(t, out)
		if !maps.Equal(taintUnion(had, []spec.Taint{{Key: "somebody.else/s", Effect: "NoSchedule"}}), taintUnion(has, nil)) || fmt.Sprint(rest) != fmt.Sprint(left) {
			t.Fatalf("%v left %v of\n%s\n%s", had, has, other, out)
		}
	}
}

// The same for flags.
func TestRandomFlags(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	values := []string{"", `""`, "--v=2", `"--v=2 --x y"`, "'--v=2  '", "--node-labels=q=1", `"--node-labels q=1 --register-with-taints=t:NoExecute"`, "--v \\\n  --w", `--node-labels="q=1,r=2" --x='a b'`}
	for range 3000 {
		before := []byte("# c\nA=1\n" + extra + "=" + values[rnd.IntN(len(values))] + "\nZ=2")
		if rnd.IntN(8) == 0 {
			before = []byte("A=1\n")
		}
		f, parts := kubeletTaintFlag(), kubeletTaintParts(randomTaints(rnd))
		if rnd.IntN(2) == 0 {
			f, parts = kubeletLabelFlag(), kubeletParts(map[string]string{"q": fmt.Sprint(rnd.IntN(3)), "nvidia.com/gpu.present": "true"})
		}
		after, err := kubeletEdited(before, extra, f, parts)
		if err != nil {
			t.Fatalf("%v in\n%s", err, before)
		}
		again, err := kubeletEdited(after, extra, f, parts)
		if err != nil || string(again) != string(after) {
			t.Fatalf("twice: %q, %q, %v", after, again, err)
		}
		if string(after) == string(before) {
			continue
		}
		out, left, err := TakeOut(before, after, append([]byte("X=1\n"), after...))
		if err != nil || left != nil || string(out) != "X=1\n"+string(before) {
			t.Fatalf("taken out of %q: %q, left %q, %v; want %q", after, out, left, err, before)
		}
	}
}

func FuzzConfiguration(f *testing.F) {
	for _, text := range confStyles() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var out []byte
		var err error
		alloc.Most(t, 4000, len(data), func() { out, err = kubeletConfEdited(data, []spec.Taint{gpuTaint, newTaint}) })
		if err != nil {
			return
		}
		again, err := kubeletConfEdited(out, []spec.Taint{gpuTaint, newTaint})
		if err != nil || string(again) != string(out) {
			t.Errorf("twice: %q, then %q, %v", out, again, err)
		}
		var was, is map[string]any
		if yaml.Unmarshal(data, &was) != nil || yaml.Unmarshal(out, &is) != nil {
			return // JSON that YAML does not read
		}
		delete(was, "registerWithTaints")
		delete(is, "registerWithTaints")
		if fmt.Sprint(was) != fmt.Sprint(is) {
			t.Errorf("more changed: %v, then %v", was, is)
		}
		if back, _, err := TakeOut(data, out, append(slices.Clone(out), '\n')); err == nil {
			if _, err := kubeletConfTaints(back); err != nil {
				t.Errorf("taken out: %q, %v", back, err)
			}
		}
	})
}

func FuzzVariables(f *testing.F) {
	f.Add([]byte(extra + "=\"--node-labels=a=1 --x\"\nX='y'\n"))
	f.Add([]byte(extra + "=--node-labels \x8d\x8d0"))
	f.Add([]byte("# c\n" + extra + "=--v=2 \\\n --node-labels=\"a=0\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parts := []string{"a=1", "nvidia.com/gpu.present=true"}
		var out []byte
		var err error
		alloc.Most(t, 2000, len(data), func() { out, err = kubeletEdited(data, extra, kubeletLabelFlag(), parts) })
		if err != nil {
			return
		}
		again, err := kubeletEdited(out, extra, kubeletLabelFlag(), parts)
		if err != nil || string(again) != string(out) {
			t.Errorf("twice: %q, then %q, %v", out, again, err)
		}
		if _, _, err := TakeOut(data, out, append([]byte("A=1\n"), out...)); err != nil && string(out) != string(data) {
			t.Logf("not taken out of %q: %v", out, err)
		}
	})
}

// What was changed outside gpuadm stays and is named, what is gone counts as taken out, and only what has no parts is refused.
func TestTakeOutByParts(t *testing.T) {
	const head = "kind: a\n"
	const two = head + "registerWithTaints:\n- {key: a, effect: NoSchedule}\n- {key: b, value: x, effect: NoSchedule}\n"
	for name, c := range map[string]struct{ before, after, found, rest, left, err string }{
		"other file":    {"options nvidia a=1\n", "options nvidia a=2\n", "options nvidia a=3\n", "", "", "cannot be told apart"},
		"other flag":    {"A=--v=1\n", "A=--v=2\n", "A=--v=3\n", "", "", "more than labels"},
		"other setting": {head, "kind: b\n", "kind: c\n", "", "", "more than"},
		"broken now":    {head, two, "a: [\n", "", "", "line"},
		"gone label":    {"A=\n", "A=--node-labels=a=1\n", "A=--v=2\n", "A=--v=2\n", "", ""},
		"gone variable": {"A=\n", "A=--node-labels=a=1\n", "B=\n", "B=\n", "", ""},
		"gone taint":    {head, two, head + "b: 1\n", head + "b: 1\n", "", ""},
		"one gone":      {head, two, head + "registerWithTaints:\n- {key: a, effect: NoSchedule}\nb: 1\n", head + "b: 1\n", "", ""},
		"other value":   {"A=\n", "A=--node-labels=a=1,b=1\n", "A=--node-labels=a=2,b=1\n", "A=--node-labels=a=2\n", "a=2 is there, gpuadm had set a=1", ""},
		"value of before": {
			"A=--node-labels=a=0\n", "A=--node-labels=a=1,b=1\n", "A=--node-labels=a=0,b=1,c=1\n", "A=--node-labels=a=0,c=1\n", "", "",
		},
		"other taint": {
			head, two, strings.Replace(two, "x", "y", 1), head + "registerWithTaints:\n- {key: b, value: y, effect: NoSchedule}\n",
			"b=y:NoSchedule is there, gpuadm had set b=x:NoSchedule", "",
		},
		"put back already": {"A=\n", "A=--node-labels=a=1\n", "A=\nB=1\n", "A=\nB=1\n", "", ""},
		"nothing changed":  {"A=\n", "A=\n", "A=1\n", "A=1\n", "", ""},
		"no file of ours":  {"x\n", "x\n", "y\n", "y\n", "", ""},
	} {
		out, left, err := TakeOut([]byte(c.before), []byte(c.after), []byte(c.found))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %q, %v", name, out, err)
			}
			continue
		}
		if err != nil || string(out) != c.rest || strings.Join(left, "\n") != c.left {
			t.Errorf("%s: %q, left %q, %v", name, out, left, err)
		}
	}
}
