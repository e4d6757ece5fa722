// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
)

// FuzzParse: any bytes get an answer; an error has a place and a fix; what go-toml refuses is
// refused here; an accepted spec is accepted again in its canonical form, with the same result.
func FuzzParse(f *testing.F) {
	names, _ := filepath.Glob("testdata/broken/*.txtar")
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if !strings.HasSuffix(file.Name, "/want") {
				f.Add(file.Data, []byte{})
			}
		}
	}

	f.Add([]byte(example), []byte(whole))
	f.Add([]byte(strings.Replace(whole, "[[mig.gpu.placements]]\n", "", 1)), []byte("node.taints = [\"example.com/a-\"]"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		files := []spec.File{{
			Name: "node.toml",
			Data: first,
		}, {Name: "node.d/10.toml", Data: second}}
		var s spec.Spec
		var err error
		alloc.Most(t, 2000, len(first)+len(second), func() { s, err = spec.Parse(files...) })
		if err == nil {
			for _, file := range files {
				if err := toml.Unmarshal([]byte(strings.TrimPrefix(string(file.Data), "\ufeff")), &map[string]any{}); err != nil {
					t.Fatalf("go-toml does not take %s: %v", file.Name, err)
				}
			}

			again, err := spec.Parse(spec.File{Name: "canonical", Data: s.TOML()})
			if err != nil {
				t.Fatalf("it is taken, but not its canonical form:\n%s\n%v", s.TOML(), err)
			}
			if again.Digest() != s.Digest() || !reflect.DeepEqual(again, s) {
				t.Fatalf("read again\n%s\nit is\n%s", s.TOML(), again.TOML())
			}
			return
		}

		var all trouble.Faults
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("%T is not Faults", err)
		}
		if !reflect.DeepEqual(s, spec.Spec{}) {
			t.Fatal("an error, and a spec")
		}
		for i, e := range all {
			data := map[string][]byte{"node.toml": first, "node.d/10.toml": second}[e.At.File]
			data = []byte(strings.TrimPrefix(string(data), "\ufeff"))
			lines := strings.Split(string(data), "\n")
			switch {
			case e.At.File == "" || e.At.Line < 1 || e.At.Column < 1 || e.What == "" || strings.Join(e.Try, "") == "":
				t.Fatalf("%#v", e)
			case e.At.Line > len(lines) || e.At.Column > utf8.RuneCountInString(lines[e.At.Line-1])+1:
				t.Fatalf("there is no such place: %#v", e)
			case !utf8.ValidString(e.At.Text+e.What+e.Try[0]) || strings.ContainsAny(e.At.Text+e.What+e.Try[0], "\x1b\n\r\x00"):
				t.Fatalf("this cannot be shown: %#v", e)
			case i > 0 && e.At.File == all[i-1].At.File && (e.At.Line < all[i-1].At.Line || e.At.Line == all[i-1].At.Line && e.At.Column < all[i-1].At.Column):
				t.Fatalf("not in order: %v", all)
			}
		}
	})
}

// TestRendered: any spec that can be said in Go can be said in TOML, and is read back as the same.
func TestRendered(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		s := random(r)
		text := s.TOML()
		got, err := spec.Parse(spec.File{Name: "node.toml", Data: text})
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		if !reflect.DeepEqual(got, s) || got.Digest() != s.Digest() {
			t.Fatalf("read\n%s\nit is\n%s", text, got.TOML())
		}
		if err := toml.Unmarshal(text, &map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
}

// randomJoin is a join that makes sense.
func randomJoin(r *rand.Rand, pick func(...string) string, path func() string) spec.Join {
	j := spec.Join{
		Method:        pick("none", "auto", "eks", "gke", "aks"),
		KubeletConfig: path(),
		Gate:          "closed",
	}
	if j.Method == "auto" || j.Method == "eks" {
		j.Cluster, j.Region, j.ServiceCIDR = pick("", "a", "A_b-1"), pick("", "eu-west-1", "us-gov-east-1"), pick("", "10.100.0.0/16", "fd00::/108")
	}
	if j.Method == "auto" || j.Method == "eks" || j.Method == "aks" {
		j.Gate = pick("closed", "open")
	}
	if j.Method == "gke" || j.Method == "aks" {
		return j
	}
	j.Server, j.CAFile, j.NodeName = "https://a:1", "/a", pick("", "a", "a-1.b")
	if r.IntN(2) == 0 {
		j.ClusterDNS = []string{"10.0.0.10", "fd00::a"}
	}
	return j
}

// random is a spec in its canonical form, with the values of absent sections at their defaults.
func random(r *rand.Rand) spec.Spec {
	s := spec.Defaults()
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	some := func() bool { return r.IntN(2) == 0 }
	path := func() string { return pick("", "/a", "/etc/ä b/\"c\"", `/x\y`, "/'") }
	allowed := func(section, name string) string {
		for _, k := range spec.Keys() {
			if k.Section == section && k.Name == name {
				return pick(k.Allowed...)
			}
		}

		panic(section + name)
	}

	section := func(name string) bool {
		if some() {
			return false
		}
		s.Sections = append(s.Sections, name)
		return true
	}

	repo := func() spec.Repo {
		if some() {
			return spec.Repo{Signature: "auto"}
		}
		return spec.Repo{
			URL:         pick("https://a/b", "file:///x", "http://a:80"),
			Key:         "/k",
			Signature:   pick("auto", "both", "metadata", "packages"),
			Fingerprint: strings.Repeat("AB", 20+12*r.IntN(2)),
		}
	}

	if section("driver") {
		s.Driver = spec.Driver{
			Version: pick("", "580", "580.95", "580.95.05"), GPUCount: 8 * r.IntN(2), Source: allowed("driver", "source"),
			Modules: allowed("driver", "modules"), Build: allowed("driver", "build"), Owner: allowed("driver", "owner"),
			Persistenced: some(), FabricManager: allowed("driver", "fabricmanager"), IMEX: allowed("driver", "imex"), Parameters: map[string]string{}, Repo: repo(),
		}
		if s.Driver.IMEX == "host" && some() {
			s.Driver.IMEXNodes = []string{pick("10.0.0.1", "fd00::1"), pick("gpu-2", "gpu-2.example")}
		}
		for i := range r.IntN(3) {
			s.Driver.Parameters[fmt.Sprint("NVreg_", i)] = pick("1", "a b", "x=1;y=2", "#")
		}
	}

	if s.Driver.Source == "runfile" {
		s.Driver.Version = pick("", "580.95", "580.95.05")
		s.Driver.Runfile = spec.Runfile{
			URL:    pick("", "https://a/b.run", "file:///b.run"),
			SHA256: strings.Repeat("0a", 32),
		}
	}

	if section("toolkit") {
		s.Toolkit = spec.Toolkit{
			Version:                  pick("", "1", "1.18", "1.18.0", "1.18.0-1", "1.18.0~rc.1-1"),
			Repo:                     repo(),
			AcceptEnvvarUnprivileged: some(),
		}
		if some() {
			s.Toolkit.Runtimes = []string{"/usr/libexec/crio/crun", "/b"}
		}
	}

	if section("runtime") {
		s.Runtime = spec.Runtime{
			Engine:       allowed("runtime", "engine"),
			Owner:        allowed("runtime", "owner"),
			Config:       "/c",
			EngineBinary: path(),
			Handler:      pick("a", "auto", "nvidia"),
			Program:      path(),
			Inject:       allowed("runtime", "inject"),
			SetAsDefault: some(),
			CDI:          some(),
			CDIStated:    true,
		}
		if s.Runtime.Inject == "cdi" {
			s.Runtime.SetAsDefault, s.Runtime.CDI = false, true
		}
	}

	if section("mig") {
		s.MIG.File = path()
		if s.MIG.File != "" && some() {
			s.MIG.Layout = pick("all", "ä \"", "a.b")
		} else {
			for range r.IntN(3) {
				gpu := spec.MIGGPU{
					Devices: spec.Devices{All: true},
					Enabled: some(),
					Layout:  map[string]int{},
				}
				if some() {
					gpu.Devices = spec.Devices{Index: []int{r.IntN(4), 4 + r.IntN(4)}}
				}
				if some() {
					gpu.Match = []string{"0x2330", "H100 80GB"}
				}
				if gpu.Enabled && some() {
					gpu.Layout = map[string]int{"1g.10gb": 1, "3g.40gb": 1}
				}
				if gpu.Enabled && some() {
					gpu.Placements = []spec.Placement{{
						Profile: "1g.10gb",
						Start:   2,
					}, {Profile: "3g.40gb", Start: 4}}
				}

				s.MIG.GPU = append(s.MIG.GPU, gpu)
			}
		}
	}

	if section("sharing") {
		s.Sharing = spec.Sharing{
			Strategy:    allowed("sharing", "strategy"),
			TimeSlicing: []int{0, 2, 10}[r.IntN(3)],
		}
		if len(s.MIG.GPU) > 0 && s.Sharing.Strategy == "single" {
			s.Sharing.Strategy = "mixed"
		}
		if s.Sharing.TimeSlicing == 0 && s.Sharing.Strategy == "none" && !s.MIG.Asked() && some() {
			s.Sharing.MPS = 3
		}
	}

	if section("node") {
		s.Node = spec.Node{
			Labels:             map[string]string{},
			StartupTaint:       pick("auto", "none", "a:NoExecute", "a/b=c:NoSchedule"),
			GPULabels:          some(),
			Kubeconfig:         path(),
			WaitForAllocatable: some(),
		}
		for i := range r.IntN(4) {
			s.Node.Labels[fmt.Sprint("example.com/l", i)] = pick("a", "1.0", "x_y")
			s.Node.Taints = append(s.Node.Taints, spec.Taint{
				Key:    fmt.Sprint("t", i),
				Value:  pick("", "v"),
				Effect: pick("NoSchedule", "NoExecute"),
			})
		}
	}

	if section("join") {
		s.Join = randomJoin(r, pick, path)
	}
	if section("proxy") {
		s.Proxy = spec.Proxy{
			HTTP:   pick("", "http://a:1"),
			HTTPS:  pick("", "https://a"),
			CAFile: path(),
		}
		if some() {
			s.Proxy.NoProxy = []string{"b", "a"}
		}
	}

	if section("disruption") {
		for _, v := range []string{"reboot", "reset-gpu", "restart-runtime", "stop-clients"} {
			if some() {
				s.Disruption.Allow = append(s.Disruption.Allow, v)
			}
		}
	}

	slices.SortFunc(s.Node.Taints, func(a, b spec.Taint) int {
		return strings.Compare(a.Key, b.Key)
	})
	return s
}
