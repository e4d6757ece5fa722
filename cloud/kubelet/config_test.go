// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// The examples of RFC 7396, appendix A, that are tables.
func TestMerge(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		var v [3]table
		for i := range c {
			must.OK(t, json.Unmarshal([]byte(c[i]), &v[i]))
		}
		before, _ := json.Marshal(v[0])
		if diff := cmp.Diff(v[2], merge(v[0], v[1])); diff != "" {
			t.Errorf("%s with %s: %s", c[0], c[1], diff)
		}
		after, _ := json.Marshal(v[0])
		check.That(t, string(after) == string(before), "%s was changed to %s", before, after)
	}
}

// TestConfigInPlaceOfFile: what is in the place of the user's file is said, and not that nothing is
// there.
func TestConfigInPlaceOfFile(t *testing.T) {
	var s spec.Spec
	s.Join.KubeletConfig = "/etc/gpuadm/kubelet.d"
	f := facts.Facts{NoFiles: map[string]string{"/etc/gpuadm/kubelet.d": "it is a folder, not a regular file"}}
	_, err := Own{}.config(s, f, facts.Engine{Name: "containerd"})
	want := "cannot use /etc/gpuadm/kubelet.d as kubelet_config: it is a folder, not a regular file"
	check.That(t, err != nil && strings.HasPrefix(err.Error(), want), "%v", err)

	_, err = Own{}.config(s, facts.Facts{}, facts.Engine{Name: "containerd"})
	check.That(t, err != nil && strings.Contains(err.Error(), "not found"), "%v", err)
}

func TestReserved(t *testing.T) {
	for _, c := range []struct {
		cpus        int
		gib         uint64
		cpu, memory string
	}{
		{1, 64, "60m", "1465Mi"}, {2, 64, "70m", "1465Mi"}, {4, 64, "80m", "1465Mi"}, {8, 64, "90m", "1465Mi"}, {96, 2048, "310m", "1465Mi"}, {2, 4, "70m", "1465Mi"},
	} {
		r := Reserved(facts.Facts{CPUs: c.cpus, Memory: c.gib << 30}, 110)
		check.That(t, r["cpu"] == c.cpu && r["memory"] == c.memory, "%d CPUs, %d GiB: %v", c.cpus, c.gib, r)
	}

	r := Reserved(facts.Facts{}, 110)
	check.That(t, r == nil, "of a machine that is not known: %v", r)
}

func TestCgroupDriver(t *testing.T) {
	for name, c := range map[string]struct{ engine, data, want string }{
		"says nothing": {"containerd", "", "cgroupfs"},
		"format 2":     {"containerd", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true", "systemd"},
		"format 3":     {"containerd", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true", "systemd"},
		"off":          {"containerd", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = false", "cgroupfs"},
		"another's":    {"containerd", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata.options]\nSystemdCgroup = true", "cgroupfs"},
		"broken":       {"containerd", "version = = 3", "cgroupfs"},
		"CRI-O":        {"crio", "", "systemd"},
		"CRI-O's own":  {"crio", "[crio.runtime]\ncgroup_manager = \"cgroupfs\"", "cgroupfs"},
	} {
		check.Equal(t, cgroupDriver(facts.Engine{
			Name:  c.engine,
			Files: []facts.File{{Path: "/c", Data: []byte(c.data)}},
		}), c.want, "%s:", name)
	}
}

// TestSystemdWord: a dollar sign is doubled in a command line, and stays in Environment=.
func TestSystemdWord(t *testing.T) {
	for word, want := range map[string]string{
		"--a=b":   "--a=b",
		"--a=$b":  "--a=$$b",
		"--a=%h":  "--a=%%h",
		"--a=b c": `"--a=b c"`,
		`--a="b"`: `"--a=\"b\""`,
		`--a=b\`:  `"--a=b\\"`,
	} {
		check.Equal(t, argument(word), want, "%s:", word)
	}

	for pair, want := range map[string]string{
		"HTTP_PROXY=http://p:1": "HTTP_PROXY=http://p:1",
		"A=$b":                  "A=$b",
		"A=b c":                 `"A=b c"`,
	} {
		check.Equal(t, quoted(pair), want, "%s:", pair)
	}
}

func FuzzReadKubeletConfig(f *testing.F) {
	f.Add([]byte("kind: KubeletConfiguration\nclusterDNS: [1]\nregisterWithTaints: 7"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var last table
		var err error
		alloc.Most(t, 2000, len(data), func() { last, err = readKubeletConfig("/x", data) })
		if err != nil {
			return
		}
		c := withTaints(nil, last, []spec.Taint{{Key: "k", Effect: "NoSchedule"}})
		if list := listOf(c["registerWithTaints"]); len(list) == 0 {
			t.Errorf("the taint was lost: %v", c)
		}
	})
}

func TestStartsOnCgroup1(t *testing.T) {
	for _, c := range []struct {
		version string
		cgroup  int
		config  map[string]any
		refused bool
	}{
		{"1.35.4", 1, nil, true},
		{"1.35.4", 1, map[string]any{"failCgroupV1": false}, false},
		{"1.36.0-rc.1", 1, map[string]any{"failCgroupV1": true}, true},
		{"1.34.9", 1, nil, false},
		{"", 1, nil, false},
		{"1.35.4", 2, nil, false},
		{"1.35.4", 0, nil, false},
	} {
		err := CheckStart(c.config, spec.Spec{}, facts.Facts{
			Cgroup:  c.cgroup,
			Kubelet: facts.Kubelet{Version: c.version},
		})
		check.That(t, (err != nil) == c.refused, "%+v: %v", c, err)
	}
}

// TestEngineAsInRuntime: with two engines kubelet uses the one that [runtime] prepares.
func TestEngineAsInRuntime(t *testing.T) {
	f := facts.Facts{Engines: []facts.Engine{{Name: "crio"}, {Name: "containerd"}}}
	e, err := EngineOf(f)
	check.That(t, err == nil && e.Name == "containerd", "%+v %v", e, err)
}
