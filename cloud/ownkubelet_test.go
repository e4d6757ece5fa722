// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
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
			if err := json.Unmarshal([]byte(c[i]), &v[i]); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := json.Marshal(v[0])
		if diff := cmp.Diff(v[2], merge(v[0], v[1])); diff != "" {
			t.Errorf("%s with %s: %s", c[0], c[1], diff)
		}
		if after, _ := json.Marshal(v[0]); string(after) != string(before) {
			t.Errorf("%s was changed to %s", before, after)
		}
	}
}

// The user's file is merged last; taints are never lost by it.
func TestKubeletConfigIsMergedLast(t *testing.T) {
	archive := testMachine + "-- etc/gpuadm/kubelet.yaml --\nfailSwapOn: false\nrotateCertificates: null\nauthentication: {x509: {clientCAFile: /else}}\nclusterDNS: [10.0.0.1]\n" +
		"registerWithTaints:\n- {key: a, effect: NoSchedule, value: theirs}\n- {key: b, effect: NoExecute}\n"
	j := startJoin(t, archive, "kubelet_config = \"/etc/gpuadm/kubelet.yaml\"\nnode_name = \"gpu-1\"\n[node]\nstartup_taint = \"none\"\ngpu_labels = false\nlabels = { pool = \"h200\" }\ntaints = [\"a=ours:NoSchedule\", \"c=ours:NoSchedule\"]\n")
	j.apply(t)
	config := j.read(t, kubeletConfig)
	for _, want := range []string{"failSwapOn: false", "clientCAFile: /else", "- 10.0.0.1", "anonymous:\n        enabled: false", "value: theirs", "key: b", "key: c"} {
		if !strings.Contains(config, want) {
			t.Errorf("lacks %q:\n%s", want, config)
		}
	}
	for _, not := range []string{"rotateCertificates", "10.96.0.10"} {
		if strings.Contains(config, not) {
			t.Errorf("has %q:\n%s", not, config)
		}
	}
	unit := j.read(t, kubeletUnitFile)
	for _, want := range []string{"--hostname-override=gpu-1", "--node-labels=pool=h200", "Wants=network-online.target containerd.service", "StartLimitIntervalSec=0", "Restart=always", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit lacks %q:\n%s", want, unit)
		}
	}
	for _, not := range []string{"Requires=", "--node-ip"} {
		if strings.Contains(unit, not) {
			t.Errorf("the unit has %q:\n%s", not, unit)
		}
	}
}

// A change of the configuration restarts kubelet, once, and its undo does.
func TestChangedConfigRestartsKubelet(t *testing.T) {
	j := startJoin(t, testMachine, "")
	j.apply(t)
	applied := j.tree()
	pin := "ca_pin = \"" + j.Pin() + "\"\n"
	j.parse(t, pin+"cluster_dns = [\"10.96.0.11\"]\n")
	res := j.apply(t)
	if got := joinNames(res.Made); !strings.Contains(got, "restart kubelet.service") || !strings.Contains(j.n.Units(), "kubelet.service enabled active fresh") {
		t.Errorf("made %s\n%s", got, j.n.Units())
	}
	if _, err := j.engine().Undo(t.Context(), j.n, "", nil); err != nil {
		t.Fatal(err, joinBecause(err))
	}
	if diff := cmp.Diff(applied, j.tree()); diff != "" {
		t.Errorf("after undo of the change:\n%s", diff)
	}
	j.apply(t)
	if _, err := j.engine().Undo(t.Context(), j.n, "all", nil); err != nil {
		t.Fatal(err, joinBecause(err))
	}
	if u := j.n.Units(); strings.Contains(u, "kubelet.service enabled") {
		t.Errorf("after undo of all kubelet runs: %s", u)
	}
}

func TestReserved(t *testing.T) {
	for _, c := range []struct {
		cpus        int
		gib         uint64
		cpu, memory string
	}{
		{1, 64, "60m", "1465Mi"}, {2, 64, "70m", "1465Mi"}, {4, 64, "80m", "1465Mi"}, {8, 64, "90m", "1465Mi"}, {96, 2048, "310m", "1465Mi"}, {2, 4, "70m", "512Mi"},
	} {
		r := reserved(facts.Facts{CPUs: c.cpus, Memory: c.gib << 30})
		if r["cpu"] != c.cpu || r["memory"] != c.memory {
			t.Errorf("%d CPUs, %d GiB: %v", c.cpus, c.gib, r)
		}
	}
	if r := reserved(facts.Facts{}); r != nil {
		t.Errorf("of a machine that is not known: %v", r)
	}
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
		if got := cgroupDriver(facts.Engine{Name: c.engine, Files: []facts.File{{Path: "/c", Data: []byte(c.data)}}}); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestSystemdWord(t *testing.T) {
	for word, want := range map[string]string{
		"--a=b": "--a=b", "--a=$b": "--a=$$b", "--a=%h": "--a=%%h", "--a=b c": `"--a=b c"`, `--a="b"`: `"--a=\"b\""`, `--a=b\`: `"--a=b\\"`,
		"HTTP_PROXY=http://p:1": "HTTP_PROXY=http://p:1", "A=$b": "A=$b", "A=b c": `"A=b c"`,
	} {
		if got := systemdWord(word); got != want {
			t.Errorf("%s: %s, not %s", word, got, want)
		}
	}
}

// A signature is taken only if it is one of this text by this token, in the one form that Kubernetes makes.
func TestSigns(t *testing.T) {
	token := bootstrapToken{"abcdef", "s3cr3t0123456789"}
	good := kubesim.Sign("text", token.id, token.secret)
	if !signs(good, "text", token) {
		t.Fatal("a good signature is refused")
	}
	for name, bad := range map[string]string{
		"another text":   kubesim.Sign("texts", token.id, token.secret),
		"another secret": kubesim.Sign("text", token.id, "another"),
		"another id":     kubesim.Sign("text", "fedcba", token.secret),
		"attached":       strings.Replace(good, "..", ".dGV4dA.", 1),
		"cut":            good[:len(good)-1],
		"none":           "eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..",
		"empty":          "",
		"dots":           "..",
	} {
		if signs(bad, "text", token) {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzSigns(f *testing.F) {
	token := bootstrapToken{"abcdef", "s3cr3t0123456789"}
	good := kubesim.Sign("text", token.id, token.secret)
	f.Add(good, "text")
	f.Add("..", "")
	f.Add("eyJ..x", "a")
	f.Fuzz(func(t *testing.T, signature, text string) {
		if signs(signature, text, token) && signature != kubesim.Sign(text, token.id, token.secret) {
			t.Errorf("%q is taken for %q", signature, text)
		}
	})
}

func FuzzSandboxes(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		var pods []string
		var err error
		alloc.Most(t, 200, len(data), func() { pods, err = sandboxes(data) })
		for _, p := range pods {
			if err == nil && strings.ContainsAny(p, "\n\r") {
				t.Errorf("%q", p)
			}
		}
	})
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
		c := ownConfig{last: last, taints: []spec.Taint{{Key: "k", Effect: "NoSchedule"}}}
		if list := listOf(c.merged(nil)["registerWithTaints"]); len(list) == 0 {
			t.Errorf("the taint was lost: %v", c.merged(nil))
		}
	})
}
