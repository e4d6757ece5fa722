// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func node(text string) spec.File {
	return spec.File{Name: "node.toml", Data: []byte(text)}
}

func part(n int, text string) spec.File {
	return spec.File{Name: fmt.Sprintf("node.d/%d.toml", n), Data: []byte(text)}
}

func parse(t *testing.T, files ...spec.File) spec.Spec {
	t.Helper()
	s := must.Get(spec.Parse(files...))(t)
	return s
}

// whole has every key that there is.
//
//go:embed testdata/whole.toml
var whole string

func wholeSpec() spec.Spec {
	return spec.Spec{
		Driver: spec.Driver{
			Version: "580.95.05", GPUCount: 8, Source: "nvidia", Modules: "open", Build: "dkms", Owner: "gpuadm", FabricManager: "on", IMEX: "host", IMEXNodes: []string{"10.0.0.12", "fd00::b", "gb200-3.example"}, Peermem: true, GDS: true,
			Packages: []string{"libnvidia-gl-580", "nvidia-driver-NVML"}, Without: []string{"libnvidia-encode-580"}, TrustVersion: true,
			Parameters: map[string]string{"NVreg_EnableGpuFirmware": "0", "NVreg_Text": "a b", "NVreg_Flag": "1", "NVreg_Hex": "16"},
			Repo: spec.Repo{
				URL:          "https://mirror.example/cuda/debian12/x86_64",
				Key:          "/etc/gpuadm/keys/cuda.asc",
				Fingerprint:  "EB693B3035CD5710E231E123A4B469963BF863CC",
				Signature:    "packages",
				EnableNeeded: true,
			},
		},
		Toolkit: spec.Toolkit{
			Version: "1.18", Runtimes: []string{"/usr/libexec/crio/crun"},
			Repo: spec.Repo{
				URL:         "file:///srv/toolkit",
				Key:         "/k",
				Fingerprint: "EB693B3035CD5710E231E123A4B469963BF863CC",
				Signature:   "auto",
			},
		},
		Runtime: spec.Runtime{
			Engine:       "containerd",
			Owner:        "other",
			Config:       "/etc/containerd/config.toml",
			EngineBinary: "/opt/bin/containerd",
			Handler:      "nvidia-cdi",
			Program:      "/opt/nvidia/runtime",
			Inject:       "handler",
			SetAsDefault: true,
			CDIStated:    true,
		},
		MIG: spec.MIG{Failure: "per-gpu", TrustDriver: true, GPU: []spec.MIGGPU{
			{
				Match: []string{"0x233010DE", "NVIDIA H100 80GB HBM3"}, Devices: spec.Devices{Index: []int{0, 1, 3}}, Enabled: true,
				Layout:     map[string]int{"1g.10gb": 1, "3g.40gb": 2},
				Placements: []spec.Placement{{"3g.40gb", 0}, {"1g.10gb", 3}, {"3g.40gb", 4}},
			},
			{Devices: spec.Devices{All: true}, Layout: map[string]int{}},
			{Devices: spec.Devices{All: true}, Enabled: true, Layout: map[string]int{"1g.10gb+me": 1}},
		}},
		Sharing: spec.Sharing{Strategy: "mixed", TimeSlicing: 4},
		Node: spec.Node{
			Labels:       map[string]string{"example.com/pool": "a100", "node.kubernetes.io/instance-type": "p5"},
			Taints:       []spec.Taint{{"example.com/a", "", "NoExecute"}, {"example.com/a", "", "NoSchedule"}, {"nvidia.com/gpu", "present", "NoSchedule"}},
			StartupTaint: "example.com/starting:NoSchedule", Kubeconfig: "/etc/gpuadm/kubeconfig", WaitForAllocatable: true,
		},
		Join: spec.Join{
			Method: "auto", Cluster: "my-cluster_1", Region: "eu-west-1", ServiceCIDR: "fd00:10::/108", ClusterDNS: []string{"10.100.0.10", "fd00::a"}, NodeName: "gpu-1.example", Gate: "open",
			Server: "https://10.0.0.1:6443", CAFile: "/etc/gpuadm/ca.crt", KubeletConfig: "/etc/gpuadm/kubelet.yaml",
		},
		Proxy: spec.Proxy{
			HTTP:    "http://proxy.example:3128",
			HTTPS:   "socks5://proxy.example:1080",
			NoProxy: []string{"10.0.0.0/8", ".svc", "[::1]"},
			CAFile:  "/etc/gpuadm/proxy.crt",
		},
		Disruption: spec.Disruption{
			Policy:        "drain",
			DrainDeadline: "1h30m",
			Allow:         []string{"reset-gpu", "restart-runtime", "stop-clients"},
		},
		Sections: []string{"driver", "toolkit", "runtime", "mig", "sharing", "node", "join", "proxy", "disruption"},
	}
}

func TestWhole(t *testing.T) {
	text := strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1)
	got := parse(t, node(text))
	if want := wholeSpec(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got.TOML(), want.TOML())
	}
	for _, k := range spec.Keys() {
		if !strings.Contains(text, k.Name) && k.Name != "mps" && k.Section != "driver.runfile" && k.Section != "driver.grid" { // mps goes neither with time_slicing nor with MIG, and a runfile with no branch
			t.Errorf("%s %s is not in this test", k.Section, k.Name)
		}
	}

	if again := parse(t, spec.File{Data: got.TOML()}); !reflect.DeepEqual(again, got) {
		t.Errorf("rendered and read again it is\n%s", again.TOML())
	}
	_, err := spec.Parse(node(whole))
	check.That(t, err != nil, "an empty placement is taken")
}

// The example of the manual, where the values are the defaults.
//
//go:embed testdata/example.toml
var example string

func TestDefaults(t *testing.T) {
	got := parse(t, node(example))
	want := parse(t, node("format = 1\n[driver]\nversion=\"580.95.05\"\n[toolkit]\n[runtime]\n[mig]\n[sharing]\n[node]\n[join]\n[proxy]\n[disruption]"))
	if !got.Runtime.CDIStated || want.Runtime.CDIStated { // written out, cdi = true overrides what the engine's config says
		t.Errorf("cdi is stated: %v %v", got.Runtime, want.Runtime)
	}
	want.Runtime.CDIStated = true
	check.That(t, reflect.DeepEqual(got, want), "the example says\n%s\nthe defaults are\n%s", got.TOML(), want.TOML())
	if got := parse(t, node("format = 1")); !reflect.DeepEqual(got, spec.Defaults()) {
		t.Errorf("without sections:\n%s", got.TOML())
	}
	d := spec.Defaults()
	check.That(t, d.Runtime.Handler == "auto" && d.Runtime.CDI && d.Driver.Source == "auto" && d.Node.Labels != nil, "%+v", d)
	for _, k := range spec.Keys() {
		check.That(t, k.Doc != "" && k.Type != "" && !strings.Contains(k.Doc, "\n"), "%+v has no line for the manual", k)
		if k.Default == "" || k.Section == "" || strings.HasPrefix(k.Section, "mig.gpu") || k.Name == "cdi" {
			continue
		}
		text := fmt.Sprintf("format = 1\n[%s]\n%s = %s\n", k.Section, k.Name, k.Default)
		got := parse(t, node(text)).Digest()
		check.That(t, got == parse(t, node(fmt.Sprintf("format = 1\n[%s]\n", k.Section))).Digest(), "the default of %s %s is not %s", k.Section, k.Name, k.Default)
		for _, v := range k.Allowed {
			if k.Type == spec.TypeStrings {
				continue
			}
			_, err := spec.Parse(node(fmt.Sprintf("format = 1\n[%s]\n%s = %q\n", k.Section, k.Name, v)))
			check.That(t, err == nil || k.Name == "method" || v == "runfile" || k.Name == "gate", "%v", err)
		}
	}
}

func TestRunfile(t *testing.T) {
	sum := strings.Repeat("0f", 32)
	for _, test := range []struct{ said, url string }{
		{"/srv/a b.run", "file:///srv/a%20b.run"},
		{"file:///srv/x.run", "file:///srv/x.run"},
		{
			"HTTPS://mirror.example/NVIDIA-Linux-x86_64-580.95.05.run?x=1",
			"https://mirror.example/NVIDIA-Linux-x86_64-580.95.05.run?x=1",
		},
		{"", ""},
	} {
		got := parse(t, node(fmt.Sprintf("format = 1\n[driver]\nsource = \"runfile\"\nversion = \"580.95.05\"\n[driver.runfile]\nurl = %q\nsha256 = %q\n", test.said, strings.ToUpper(sum))))
		want := (spec.Runfile{URL: test.url, SHA256: sum})
		check.That(t, got.Driver.Runfile == want && got.Has("driver.runfile"), "%s: %+v, want %+v", test.said, got.Driver.Runfile, want)
		if again := parse(t, spec.File{Data: got.TOML()}); !reflect.DeepEqual(again, got) {
			t.Errorf("rendered and read again it is\n%s", again.TOML())
		}
	}
}

func TestHas(t *testing.T) {
	s := parse(t, node("format = 1\nruntime = {}\n[driver.repo]\n"), part(1, "mig.gpu = []\n"))
	for name, want := range map[string]bool{
		"driver": true, "runtime": true, "mig": true, "node": false, "driver.repo": false, "mig.gpu": false, "nonsense": false, "": false,
	} {
		check.That(t, s.Has(name) == want, "Has(%q) is %v", name, !want)
	}

	s = parse(t, node(strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1)))
	check.That(t, s.Has("driver.repo") && s.Has("toolkit.repo") && s.Has("mig.gpu"), "the sections are not found")
}

func TestMerge(t *testing.T) {
	for _, test := range []struct{ name, first, second, want string }{
		{
			"later wins", `driver = { version = "570", gpu_count = 8 }`, `driver = { version = "580" }`,
			`driver = { version = "580", gpu_count = 8 }`,
		},
		{"back to the default", `driver = { version = "570" }`, `driver = { version = "" }`, `driver = {}`},
		{"sections add up", `driver = {}`, `mig = {}`, "mig = {}\ndriver = {}"},
		{
			"labels", `node.labels = { a = "1", b = "2", c = "3" }`,
			`node.labels = { b = "", "c-" = "", d = "4" }`,
			`node.labels = { a = "1", b = "", d = "4" }`,
		},
		{"label that is not there", `node.labels = { a = "1" }`, `node.labels = { "b-" = "" }`, `node.labels = { a = "1" }`},
		{
			"forbidden label taken out",
			`node.labels = { "node-role.kubernetes.io/a" = "1" }`,
			`node.labels = { "node-role.kubernetes.io/a-" = "" }`,
			`node.labels = {}`,
		},
		{
			"taints",
			`node.taints = ["a=1:NoSchedule", "b=1:NoSchedule"]`,
			`node.taints = ["b=2:NoSchedule", "c:NoExecute"]`,
			`node.taints = ["a=1:NoSchedule", "b=2:NoSchedule", "c:NoExecute"]`,
		},
		{
			"taint of another effect", `node.taints = ["a=1:NoSchedule"]`, `node.taints = ["a=2:NoExecute"]`,
			`node.taints = ["a=1:NoSchedule", "a=2:NoExecute"]`,
		},
		{
			"taint removed",
			`node.taints = ["a=1:NoSchedule", "a=1:NoExecute", "b:NoExecute"]`,
			`node.taints = ["a-"]`,
			`node.taints = ["b:NoExecute"]`,
		},
		{
			"taint of an effect removed",
			`node.taints = ["a=1:NoSchedule", "a=1:NoExecute"]`,
			`node.taints = ["a:NoExecute-"]`,
			`node.taints = ["a=1:NoSchedule"]`,
		},
		{"all taints removed", `node.taints = ["a=1:NoSchedule"]`, `node.taints = ["a-"]`, `node.taints = []`},
		{
			"taint without a value", `node.taints = ["a=1:NoSchedule"]`, `node.taints = ["a=:NoSchedule"]`,
			`node.taints = ["a:NoSchedule"]`,
		},
		{
			"taint replaced by another", `node.taints = ["a=1:NoSchedule"]`, `node.taints = ["a-", "a=2:NoExecute"]`,
			`node.taints = ["a=2:NoExecute"]`,
		},
		{
			"parameters", `driver.parameters = { A = 1, B = 2 }`, `driver.parameters = { A = "", C = 3 }`,
			`driver.parameters = { B = 2, C = 3 }`,
		},
		{"lists replace", `proxy.no_proxy = ["a", "b"]`, `proxy.no_proxy = ["c"]`, `proxy.no_proxy = ["c"]`},
		{"lists become empty", `disruption.allow = ["reboot"]`, `disruption.allow = []`, `disruption = {}`},
		{
			"gpus replace",
			"[[mig.gpu]]\ndevices = [0]\n[[mig.gpu]]\ndevices = [1]",
			"[[mig.gpu]]\ndevices = [2]",
			"[[mig.gpu]]\ndevices = [2]",
		},
		{"gpus go", "[[mig.gpu]]", "[mig]\ngpu = []\nlayout = \"x\"\nfile = \"/m\"", "[mig]\nlayout = \"x\"\nfile = \"/m\""},
		{
			"layout goes", "[mig]\nlayout = \"x\"\nfile = \"/m\"", "[mig]\nlayout = \"\"\n[[mig.gpu]]",
			"[mig]\nfile = \"/m\"\n[[mig.gpu]]",
		},
		{"method is given up", `join.method = "eks"`, `join.method = "none"`, `join = {}`},
		{
			"halves of a repo", `driver.repo = { url = "https://a/b" }`,
			`driver.repo = { key = "/k", fingerprint = "` + strings.Repeat("0", 40) + `" }`,
			`driver.repo = { url = "https://a/b", key = "/k", fingerprint = "` + strings.Repeat("0", 40) + `" }`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := parse(t, node("format = 1\n"+test.first), part(10, test.second))
			want := parse(t, node("format = 1\n"+test.want))
			check.That(t, reflect.DeepEqual(got, want) && got.Digest() == want.Digest(), "got\n%s\nwant\n%s", got.TOML(), want.TOML())
		})
	}
}

func TestDigest(t *testing.T) {
	a := parse(t, node("format = 1\n[driver]\nversion = '580' # c\ngpu_count = 0x8\n[node.labels]\nb = \"2\"\na = \"1\"\n"))
	b := parse(t, node("\ufeffformat=1\r\nnode.labels={a=\"1\",b=\"2\"}\r\n[driver]\r\ngpu_count=8\r\n"), part(1, "driver.version = \"\"\"580\"\"\""))
	check.That(t, a.Digest() == b.Digest() && len(a.Digest()) == 12, "%s %s", a.Digest(), b.Digest())
	seen := map[string]string{}
	for _, text := range []string{"", "[driver]", "[mig]", "[driver]\nversion = \"580\"", "[driver]\ngpu_count = 1", "[[mig.gpu]]", "[[mig.gpu]]\n[[mig.gpu]]", "[[mig.gpu]]\nenabled = false", "[node.labels]\na = \"1\"", "[node]\ntaints = [\"a:NoSchedule\"]"} {
		digest := parse(t, node("format = 1\n"+text)).Digest()
		other, found := seen[digest]
		check.That(t, !found, "%q and %q have the same digest", text, other)
		seen[digest] = text
	}
}

// The order of keys and sections, and the spread over files, do not matter.
func TestOrder(t *testing.T) {
	lines := map[string][]string{
		"driver":  {`version = "580"`, `gpu_count = 8`, `build = "dkms"`},
		"node":    {`labels = { a = "1" }`, `taints = ["a:NoSchedule", "b:NoSchedule"]`, `gpu_labels = false`},
		"join":    {`method = "eks"`, `server = "https://a"`, `cluster = "t"`, `ca_file = "/c"`},
		"sharing": {`strategy = "single"`, `time_slicing = 2`},
	}
	render := func(names []string, order func([]string) []string) string {
		var b bytes.Buffer
		for _, name := range names {
			fmt.Fprintf(&b, "[%s]\n%s\n", name, strings.Join(order(slices.Clone(lines[name])), "\n"))
		}
		return b.String()
	}

	same := func(l []string) []string { return l }
	back := func(l []string) []string { slices.Reverse(l); return l }
	want := parse(t, node("format = 1\n"+render([]string{"driver", "node", "join", "sharing"}, same)))
	for i, files := range [][]spec.File{
		{node("format = 1\n" + render([]string{"sharing", "join", "node", "driver"}, back))},
		{node("format = 1\n" + render([]string{"join"}, back)), part(1, render([]string{"sharing", "driver"}, same)), part(2, render([]string{"node"}, back))},
	} {
		if got := parse(t, files...); !reflect.DeepEqual(got, want) || got.Digest() != want.Digest() {
			t.Errorf("%d: got\n%s\nwant\n%s", i, got.TOML(), want.TOML())
		}
	}
}

func BenchmarkParse(b *testing.B) {
	file := node(strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1))
	b.ReportAllocs()
	for b.Loop() {
		must.Get(spec.Parse(file))(b)
	}
}

// TestRepoWithoutURL: enable_needed asks for no mirror; a key may be trusted by its file's digest.
func TestRepoWithoutURL(t *testing.T) {
	s := parse(t, node("format = 1\n[driver.repo]\nenable_needed = true\n"))
	check.That(t, s.Driver.Repo.EnableNeeded && s.Has("driver.repo") && s.Driver.Repo.URL == "", "%+v", s.Driver.Repo)
	digest := "sha256:" + strings.Repeat("Ab", 32)
	s = parse(t, node("format = 1\n[driver.repo]\nurl = \"https://a/b\"\nkey = \"/k\"\nfingerprint = \""+digest+"\"\n"))
	check.That(t, s.Driver.Repo.Fingerprint == strings.ToLower(digest), "%+v", s.Driver.Repo)
}
