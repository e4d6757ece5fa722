// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// dice make random parts of a spec.
type dice struct{ *rand.Rand }

// some is true half of the time.
func (d dice) some() bool { return d.IntN(2) == 0 }

func (d dice) pick(values ...string) string { return values[d.IntN(len(values))] }

// path is a path, or none; some of them need quotes in TOML.
func (d dice) path() string {
	return d.pick("", "/a", "/etc/ä b/\"c\"", `/x\y`, "/'")
}

// allowed is one of the words that a key takes.
func (d dice) allowed(section, name string) string {
	for _, k := range spec.Keys() {
		if k.Section == section && k.Name == name {
			return d.pick(k.Allowed...)
		}
	}

	panic(section + name)
}

// spec is a spec in its canonical form, with the values of absent sections at their defaults.
func (d dice) spec() spec.Spec {
	s := spec.Defaults()
	section := func(name string) bool {
		if d.some() {
			return false
		}
		s.Sections = append(s.Sections, name)
		return true
	}

	if section("driver") {
		s.Driver = d.driver()
	}
	if section("toolkit") {
		s.Toolkit = d.toolkit()
	}
	if section("runtime") {
		s.Runtime = d.runtime()
	}
	if section("mig") {
		d.partition(&s.MIG)
	}
	if section("sharing") {
		s.Sharing = d.sharing(s.MIG)
	}
	if section("node") {
		s.Node = d.node()
	}
	if section("join") {
		s.Join = d.join()
	}
	if section("proxy") {
		s.Proxy = d.proxy()
	}
	if section("disruption") {
		for _, what := range []string{"reboot", "reset-gpu", "restart-runtime", "stop-clients"} {
			if d.some() {
				s.Disruption.Allow = append(s.Disruption.Allow, what)
			}
		}
	}

	return s
}

func (d dice) driver() spec.Driver {
	driver := spec.Driver{
		Version:       d.pick("", "580", "580.95", "580.95.05"),
		GPUCount:      8 * d.IntN(2),
		Source:        d.allowed("driver", "source"),
		Modules:       d.allowed("driver", "modules"),
		Build:         d.allowed("driver", "build"),
		Owner:         d.allowed("driver", "owner"),
		Persistenced:  d.some(),
		FabricManager: d.allowed("driver", "fabricmanager"),
		IMEX:          d.allowed("driver", "imex"),
		Parameters:    map[string]string{},
		Repo:          d.repo(),
	}
	if driver.IMEX == "host" && d.some() {
		driver.IMEXNodes = []string{
			d.pick("10.0.0.1", "fd00::1"),
			d.pick("gpu-2", "gpu-2.example"),
		}
	}
	for i := range d.IntN(3) {
		driver.Parameters[fmt.Sprint("NVreg_", i)] = d.pick("1", "a b", "x=1;y=2", "#")
	}

	if driver.Source == "runfile" { // its version is exact
		driver.Version = d.pick("", "580.95", "580.95.05")
		driver.Runfile = spec.Runfile{
			URL:    d.pick("", "https://a/b.run", "file:///b.run"),
			SHA256: strings.Repeat("0a", 32),
		}
	}
	return driver
}

func (d dice) repo() spec.Repo {
	if d.some() {
		return spec.Repo{Signature: "auto"}
	}
	return spec.Repo{
		URL:         d.pick("https://a/b", "file:///x", "http://a:80"),
		Key:         "/k",
		Signature:   d.pick("auto", "both", "metadata", "packages"),
		Fingerprint: strings.Repeat("AB", 20+12*d.IntN(2)),
	}
}

func (d dice) toolkit() spec.Toolkit {
	toolkit := spec.Toolkit{
		Version:                  d.pick("", "1", "1.18", "1.18.0", "1.18.0-1", "1.18.0~rc.1-1"),
		Repo:                     d.repo(),
		AcceptEnvvarUnprivileged: d.some(),
	}
	if d.some() {
		toolkit.Runtimes = []string{"/usr/libexec/crio/crun", "/b"}
	}
	return toolkit
}

func (d dice) runtime() spec.Runtime {
	runtime := spec.Runtime{
		Engine:       d.allowed("runtime", "engine"),
		Owner:        d.allowed("runtime", "owner"),
		Config:       "/c",
		EngineBinary: d.path(),
		Handler:      d.pick("a", "auto", "nvidia"),
		Program:      d.path(),
		Inject:       d.allowed("runtime", "inject"),
		SetAsDefault: d.some(),
		CDI:          d.some(),
		CDIStated:    true,
	}
	if runtime.Inject == "cdi" {
		runtime.SetAsDefault = false
		runtime.CDI = true
	}
	return runtime
}

// partition asks for a layout of a file, or for partitions of up to two sets of GPUs.
func (d dice) partition(m *spec.MIG) {
	m.File = d.path()
	if m.File != "" && d.some() {
		m.Layout = d.pick("all", "ä \"", "a.b")
		return
	}
	for range d.IntN(3) {
		m.GPU = append(m.GPU, d.migGPU())
	}
}

func (d dice) migGPU() spec.MIGGPU {
	gpu := spec.MIGGPU{
		Devices: spec.Devices{All: true},
		Enabled: d.some(),
		Layout:  map[string]int{},
	}
	if d.some() {
		gpu.Devices = spec.Devices{Index: []int{d.IntN(4), 4 + d.IntN(4)}}
	}
	if d.some() {
		gpu.Match = []string{"0x2330", "H100 80GB"}
	}
	if gpu.Enabled && d.some() {
		gpu.Layout = map[string]int{"1g.10gb": 1, "3g.40gb": 1}
	}
	if gpu.Enabled && d.some() {
		gpu.Placements = []spec.Placement{
			{Profile: "1g.10gb", Start: 2},
			{Profile: "3g.40gb", Start: 4},
		}
	}
	return gpu
}

func (d dice) sharing(m spec.MIG) spec.Sharing {
	sharing := spec.Sharing{
		Strategy:    d.allowed("sharing", "strategy"),
		TimeSlicing: []int{0, 2, 10}[d.IntN(3)],
	}
	if len(m.GPU) > 0 && sharing.Strategy == "single" {
		sharing.Strategy = "mixed"
	}
	mayUseMPS := sharing.TimeSlicing == 0 && sharing.Strategy == "none" && !m.Asked()
	if mayUseMPS && d.some() {
		sharing.MPS = 3
	}
	return sharing
}

func (d dice) node() spec.Node {
	node := spec.Node{
		Labels:             map[string]string{},
		StartupTaint:       d.pick("auto", "none", "a:NoExecute", "a/b=c:NoSchedule"),
		GPULabels:          d.some(),
		Kubeconfig:         d.path(),
		WaitForAllocatable: d.some(),
	}
	for i := range d.IntN(4) {
		node.Labels[fmt.Sprint("example.com/l", i)] = d.pick("a", "1.0", "x_y")
		node.Taints = append(node.Taints, spec.Taint{
			Key:    fmt.Sprint("t", i),
			Value:  d.pick("", "v"),
			Effect: d.pick("NoSchedule", "NoExecute"),
		})
	}
	return node
}

// join is a join that makes sense: each method has keys of its own.
func (d dice) join() spec.Join {
	j := spec.Join{
		Method:        d.pick("none", "auto", "eks", "gke", "aks"),
		KubeletConfig: d.path(),
		Gate:          "closed",
	}
	if slices.Contains([]string{"auto", "eks"}, j.Method) {
		j.Cluster = d.pick("", "a", "A_b-1")
		j.Region = d.pick("", "eu-west-1", "us-gov-east-1")
		j.ServiceCIDR = d.pick("", "10.100.0.0/16", "fd00::/108")
	}
	if slices.Contains([]string{"auto", "eks", "aks"}, j.Method) {
		j.Gate = d.pick("closed", "open")
	}
	if slices.Contains([]string{"gke", "aks"}, j.Method) {
		return j
	}

	j.Server = "https://a:1"
	j.CAFile = "/a"
	j.NodeName = d.pick("", "a", "a-1.b")
	if d.some() {
		j.ClusterDNS = []string{"10.0.0.10", "fd00::a"}
	}
	return j
}

func (d dice) proxy() spec.Proxy {
	proxy := spec.Proxy{
		HTTP:   d.pick("", "http://a:1"),
		HTTPS:  d.pick("", "https://a"),
		CAFile: d.path(),
	}
	if d.some() {
		proxy.NoProxy = []string{"b", "a"}
	}
	return proxy
}
