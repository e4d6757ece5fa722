// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const config = "/etc/containerd/config.toml"

// kubeadmNode is a node with containerd as kubeadm sets it up.
func kubeadmNode(t *testing.T) *simhost.Node {
	t.Helper()
	n := recordedAs(t, "ubuntu24-h100").boot(t)
	n.Reboot()
	return n
}

// outside changes containerd's configuration outside gpuadm.
func outside(t *testing.T, n *simhost.Node, change func(string) string) {
	t.Helper()
	now := readConfig(t, n)
	then := change(now)
	must.That(t, then != now, "nothing to change in\n%s", now)
	put(t, n, config, then)
	must.OK(t, n.SetUnit(context.Background(), "containerd.service", host.UnitChange{Job: "restart"}))
}

func readConfig(t *testing.T, n *simhost.Node) string {
	t.Helper()
	data := must.Get(n.ReadFile(config))(t)
	return string(data)
}

func swapped(old, now string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, old, now) }
}

func appended(text string) func(string) string {
	return func(s string) string { return s + text }
}

// reformatted is the file as a program writes it that knows nothing of comments.
func reformatted(s string) string {
	var tree map[string]any
	if err := toml.Unmarshal([]byte(s), &tree); err != nil {
		panic(err)
	}
	out, err := toml.Marshal(tree)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// A spec that asks for less takes back what was made, also where the file was changed outside
// gpuadm since; what it cannot take back is said by the plan.
func TestShrinkingAfterARewrite(t *testing.T) {
	cgroup := swapped("SystemdCgroup = true", "SystemdCgroup = false")
	for name, c := range map[string]struct {
		from, to string
		rewrite  func(string) string
		gone     []string
		there    []string
		left     string // what the plan says to stay
	}{
		"default dropped after sed": {
			sections["default"], sections["handler"], cgroup,
			[]string{`default_runtime_name = "nvidia"`},
			[]string{`default_runtime_name = "runc"`, "runtimes.nvidia.options]"},
			"containerd.runtimes.nvidia is there (line ",
		},
		"default dropped after another format": {
			sections["default"], sections["handler"], reformatted,
			[]string{"default_runtime_name = 'nvidia'"},
			[]string{"nvidia-container-runtime", `default_runtime_name = "runc"`},
			"",
		},
		"handler renamed after another format": {
			sections["default"], "[runtime]\nengine = \"containerd\"\nhandler = \"nvidia-two\"\nset_as_default = true\n", reformatted,
			[]string{"runtimes.nvidia]", "default_runtime_name = 'nvidia'"},
			[]string{"runtimes.nvidia-two"},
			"",
		},
		"handler renamed after sed": {
			sections["default"], "[runtime]\nengine = \"containerd\"\nhandler = \"nvidia-two\"\nset_as_default = true\n", cgroup,
			[]string{`default_runtime_name = "nvidia"`},
			[]string{"runtimes.nvidia]", "runtimes.nvidia-two", `default_runtime_name = "nvidia-two"`},
			"with options.SystemdCgroup = false, gpuadm had set true",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := kubeadmNode(t)
			apply(t, n, engine(t, c.from))
			outside(t, n, c.rewrite)
			p := plan(t, n, engine(t, c.from))
			check.That(t, p.Now() <= 0, "before the spec changes, planned: %s", namesNow(p.Changes))
			var left []string
			for _, change := range plan(t, n, engine(t, c.to)).Changes {
				left = append(left, change.Left...)
			}
			problems := strings.Join(left, "\n")
			check.That(t, (problems == "") == (c.left == "") && strings.Contains(problems, c.left), "the plan says to stay: %q, not %q", problems, c.left)
			apply(t, n, engine(t, c.to))
			now := readConfig(t, n)
			for _, text := range c.gone {
				check.That(t, !strings.Contains(now, text), "%s is still there:\n%s", text, now)
			}
			check.Says(t, now, c.there...)
			p = plan(t, n, engine(t, c.to))
			check.That(t, p.Now() <= 0, "applied, still planned: %s", namesNow(p.Changes))
			undo(t, n, engine(t, c.to), "all")
			now = readConfig(t, n)
			check.That(t, !strings.Contains(now, "nvidia-two") && !strings.Contains(now, "default_runtime_name = \"nvidia\""), "undone:\n%s", now)
		})
	}
}

// What is not there counts as taken out: undo ends with what was written outside gpuadm, whatever
// that was and when.
func TestUndoAfterARewrite(t *testing.T) {
	const template = "version = 2\n# by Ansible\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"
	const comment, table = "# by an administrator\n", "[debug]\nlevel = \"info\"\n"
	type step struct {
		spec   string
		change func(string) string
	}
	on, less := sections["default"], sections["handler"]
	first := readConfig(t, kubeadmNode(t))
	for name, c := range map[string]struct {
		steps []step
		want  string
	}{
		"template":                  {[]step{{spec: on}, {change: func(string) string { return template }}}, template},
		"template, applied again":   {[]step{{spec: on}, {change: func(string) string { return template }}, {spec: on}}, template},
		"template, applied, both":   {[]step{{spec: on}, {change: func(string) string { return template }}, {spec: on}, {change: appended(table)}}, template + table},
		"template twice":            {[]step{{spec: on}, {change: func(string) string { return first + comment }}, {spec: on}, {change: func(string) string { return template }}}, template},
		"dropped, appended":         {[]step{{spec: on}, {spec: less}, {change: appended(table)}}, first + table},
		"edit, dropped, edit":       {[]step{{spec: on}, {change: appended(comment)}, {spec: less}, {change: appended(table)}}, first + comment + table},
		"dropped, then set by hand": {[]step{{spec: on}, {change: appended(comment)}, {spec: less}, {change: swapped(`default_runtime_name = "runc"`, `default_runtime_name = "kata"`)}}, swapped(`"runc"`+"\n", `"kata"`+"\n")(first) + comment},
		"reverted by hand":          {[]step{{spec: on}, {change: func(string) string { return first + table }}}, first + table},
		"migrated": {
			[]step{{spec: on}, {change: swapped("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")}},
			"", // all of it is under names that gpuadm did not write
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := kubeadmNode(t)
			for _, s := range c.steps {
				if s.change != nil {
					outside(t, n, s.change)
				} else {
					apply(t, n, engine(t, s.spec))
				}
			}

			want := c.want
			if want == "" {
				want = readConfig(t, n)
			}
			undo(t, n, engine(t, on), "all")
			compare(t, "undone", want, readConfig(t, n))
			res := undo(t, n, engine(t, on), "all")
			check.That(t, res.Run == "", "there was more to undo: %v", names(res.Made))
		})
	}
}

// A default that an administrator sets by hand after gpuadm took its own back is the
// administrator's.
func TestWhatWasTakenBackIsNotOurs(t *testing.T) {
	n := kubeadmNode(t)
	apply(t, n, engine(t, sections["default"]))
	outside(t, n, appended("# by an administrator\n"))
	apply(t, n, engine(t, sections["handler"]))
	outside(t, n, swapped(`default_runtime_name = "runc"`, `default_runtime_name = "nvidia"`))
	now := readConfig(t, n)
	if p := plan(t, n, engine(t, sections["handler"])); p.Now() > 0 {
		t.Errorf("planned: %s %s", namesNow(p.Changes), p.Changes[0].Diff)
	}
	res := undo(t, n, engine(t, sections["handler"]), "all")
	if len(res.Left) != 1 || !strings.Contains(res.Left[0].Cannot, "runtimes.nvidia is there") || readConfig(t, n) != now {
		t.Errorf("left %v:\n%s", res.Left, readConfig(t, n))
	}
}

// A stage that failed and was rolled back has nothing in a file that an administrator changes then.
func TestUndoOfWhatWasRolledBack(t *testing.T) {
	n := kubeadmNode(t)
	e := engine(t, sections["default"])
	rest := named("driver", things.Exact("/etc/rest", []byte("x"), 0o644, ""))
	fails := e.Stages[0]
	for _, st := range e.Stages {
		if st.Name == "runtime" {
			fails = st
		}
	}

	wants := fails.Wants
	fails.Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		list, err := wants(s, f)
		return append(list, converge.Want{Thing: broken{}, To: to("on")}), err
	}

	e.Stages = []converge.Stage{rest, fails}
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "broken" {
			return broken{}, nil
		}
		return thingOf(ref)
	}

	first := readConfig(t, n)
	_, err := e.Apply(context.Background(), n)
	must.That(t, err != nil, "what cannot be made was made")
	compare(t, "rolled back", first, readConfig(t, n))
	outside(t, n, appended("[debug]\nlevel = \"info\"\n"))
	want := readConfig(t, n)
	undo(t, n, e, "all")
	compare(t, "undone", want, readConfig(t, n))
	_, err = n.Stat("/etc/rest")
	check.That(t, err != nil, "the rest was not undone")
}

// broken cannot be made.
type broken struct{}

func (broken) Ref() converge.Ref { return converge.Ref{Kind: "broken", Name: "broken"} }

func (broken) Look(context.Context, host.View) (converge.State, error) { return "", nil }

func (broken) Make(context.Context, host.Host, converge.State) error {
	return errors.New("no")
}

// A change that was cut short may or may not have been made. Edited by an administrator then, the
// file is without ours after undo all the same.
func TestUndoOfACutChangeThatWasEdited(t *testing.T) {
	for _, order := range [][2]string{{sections["default"], sections["handler"]}, {sections["handler"], sections["default"]}, {"", sections["default"]}} {
		boot := func() *simhost.Node {
			n := kubeadmNode(t)
			apply(t, n, engine(t, order[0]))
			return n
		}

		whole := boot()
		made := whole.Touches()
		apply(t, whole, engine(t, order[1]))
		first := readConfig(t, kubeadmNode(t))
		for at := range whole.Touches() - made {
			n := boot()
			n.CutAt(made + at)
			_, _ = engine(t, order[1]).Apply(context.Background(), n)
			n.Revive()
			outside(t, n, appended("[debug]\nlevel = \"info\"\n"))
			undo(t, n, engine(t, order[1]), "all")
			compare(t, fmt.Sprintf("%q then %q cut at touch %d, edited and undone", order[0], order[1], at), first+"[debug]\nlevel = \"info\"\n", readConfig(t, n))
		}
	}
}

// TestShrinkingAfterTwoEdits: others take a key out, an apply writes it again, others add one of
// theirs, and the spec shrinks. What the first apply wrote and the spec no longer asks for goes,
// though the second apply found it there.
func TestShrinkingAfterTwoEdits(t *testing.T) {
	n := kubeadmNode(t)
	apply(t, n, engine(t, sections["default"]))
	outside(t, n, func(s string) string {
		return s[:strings.Index(s, "\n    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]")]
	})
	apply(t, n, engine(t, sections["default"]))
	outside(t, n, appended("\n[stream_processors.theirs]\nreturns = \"kept\"\n"))
	apply(t, n, engine(t, sections["handler"]))
	now := readConfig(t, n)
	for text, want := range map[string]bool{`default_runtime_name = "nvidia"`: false, "enable_cdi": false, "runtimes.nvidia.options]": true, "stream_processors.theirs": true} {
		if strings.Contains(now, text) != want {
			t.Errorf("%s is there: %t\n%s", text, !want, now)
		}
	}
}

// TestShrinkingOverARunThatWasKilled: others add a key, and the apply of a smaller spec is killed
// before it has written the file. The next one takes out what the spec no longer asks for.
func TestShrinkingOverARunThatWasKilled(t *testing.T) {
	for at := range 40 {
		n := kubeadmNode(t)
		apply(t, n, engine(t, sections["default"]))
		outside(t, n, appended("\n[stream_processors.theirs]\nreturns = \"kept\"\n"))
		n.CutAt(n.Touches() + at)
		_, err := engine(t, sections["handler"]).Apply(t.Context(), n)
		n.Revive()
		apply(t, n, engine(t, sections["handler"]))
		now := readConfig(t, n)
		check.That(t, !strings.Contains(now, "enable_cdi") && strings.Contains(now, "stream_processors.theirs"), "killed at touch %d: %v\n%s", at, err, now)
	}
}
