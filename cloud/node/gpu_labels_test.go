// SPDX-License-Identifier: Apache-2.0

package node

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// gfd lets NVIDIA's own program rewrite the goldens: it is asked about the same GPUs, simulated by
// test/fakenvml.
var gfd = flag.String("gfd", "", "path of gpu-feature-discovery (v0.20 or newer): write what it says into testdata/gfd")

// labelCase is a machine. Its golden file is what GPU Feature Discovery writes on it.
type labelCase struct {
	name     string
	gpus     string           // as fakenvml.New takes it
	layout   map[int][]string // partitions of a GPU: 1g.10gb, or 3g.40gb/1,2 with its compute instances; no entry: MIG is off
	strategy string
	replicas int
	mps      int
	machine  string
}

func labelCases() []labelCase {
	sevenths := slices.Repeat([]string{"1g.5gb"}, 7)
	return []labelCase{
		{name: "h100-none", gpus: "H100-80:8", strategy: "none", machine: "PowerEdge XE9680"},
		{name: "t4-none", gpus: "T4", strategy: "none", machine: "Google Compute Engine"},
		{name: "l40s-none", gpus: "L40S:4", strategy: "none", machine: "g6e.12xlarge"},
		{name: "b200-none", gpus: "B200:8", strategy: "none", machine: "Standard PC (Q35 + ICH9, 2009)"},
		{name: "t4-single", gpus: "T4:2", strategy: "single", machine: "Virtual Machine"},
		{name: "a100-whole-mixed", gpus: "A100-40:8", strategy: "mixed", machine: "p4d.24xlarge"},
		{name: "t4-shared", gpus: "T4", strategy: "none", replicas: 4, machine: "g4dn.xlarge"},
		// Not run: t4-shared with what internal/lm/nvml.go (newSharingLabeler) and resource.go
		// (baseLabeler) have for MPS.
		{name: "t4-mps", gpus: "T4:2", strategy: "none", mps: 4, machine: "g4dn.xlarge"},
		{name: "a100-single", gpus: "A100-40:2", layout: map[int][]string{0: sevenths, 1: sevenths}, strategy: "single", machine: "DGXA100 920-23687-2530-000"},
		{name: "a100-single-shared", gpus: "A100-40:1", layout: map[int][]string{0: sevenths}, strategy: "single", replicas: 4, machine: "a2-highgpu-1g"},
		{name: "a100-none-in-mig-mode", gpus: "A100-40:2", layout: map[int][]string{0: sevenths, 1: sevenths}, strategy: "none", replicas: 4, machine: ""},
		{name: "a100-single-two-sizes", gpus: "A100-40:2", layout: map[int][]string{0: sevenths, 1: {"3g.20gb", "3g.20gb"}}, strategy: "single"},
		{name: "a100-single-one-whole", gpus: "A100-40:2", layout: map[int][]string{1: sevenths}, strategy: "single"},
		{name: "a100-single-empty", gpus: "A100-40:2", layout: map[int][]string{0: sevenths, 1: {}}, strategy: "single"},
		{name: "a100-mixed", gpus: "A100-40:2", layout: map[int][]string{1: {"2g.10gb", "2g.10gb", "1g.5gb", "1g.5gb+me"}}, strategy: "mixed", machine: "x"},
		{name: "a100-mixed-compute", gpus: "A100-80", layout: map[int][]string{0: {"4g.40gb/4", "3g.40gb/2,1"}}, strategy: "mixed", machine: "x"},
		{name: "h200-mixed", gpus: "H200:2", layout: map[int][]string{0: {"3g.71gb", "1g.18gb+me", "1g.35gb"}, 1: {}}, strategy: "mixed", machine: "x"},
		{name: "b200-mixed", gpus: "B200", layout: map[int][]string{0: {"4g.90gb", "2g.45gb", "1g.23gb"}}, strategy: "mixed", replicas: 2, machine: "x"},
		{name: "rtx-mixed", gpus: "RTX-PRO-6000", layout: map[int][]string{0: {"2g.48gb-me", "1g.24gb+me.all", "1g.24gb-me"}}, strategy: "mixed", machine: "x"},
		{name: "a30-mixed", gpus: "A30:2", layout: map[int][]string{0: {"2g.12gb", "1g.6gb", "1g.6gb+me"}, 1: {"4g.24gb"}}, strategy: "mixed", machine: "x"},
		{name: "a100-and-t4", gpus: "A100-40,T4:3", layout: map[int][]string{0: sevenths}, strategy: "mixed", machine: "x"},
	}
}

// resources are those that the device plugin's configuration shares.
func (c labelCase) resources() []string {
	names := []string{spec.WholeGPU}
	if c.strategy == "mixed" {
		for _, partitions := range c.layout {
			for _, p := range partitions {
				names = append(names, spec.PartitionResource(p))
			}
		}
	}

	slices.Sort(names)
	return slices.Compact(names)
}

// node makes the machine in memory.
func (c labelCase) node(t *testing.T) *simhost.Node {
	t.Helper()
	archive := "-- sys/class/dmi/id/product_name --\n" + c.machine + "\n-- sim.toml --\n"
	for _, part := range strings.Split(c.gpus, ",") {
		model, count, _ := strings.Cut(part, ":")
		if count == "" {
			count = "1"
		}
		archive += fmt.Sprintf("[[gpu]]\nmodel = %q\ncount = %s\n", model, count)
		if model == "H100-80" || model == "H200" || model == "B200" { // the fake driver's NVLink domain
			archive += "fabric = { state = \"completed\", cluster = \"5a61686f-767d-848b-9299-a0a7aeb5bcc3\" }\n"
		}
	}

	n := must.Get(simhost.New([]byte(archive)))(t)
	if wait := partition(t, n, c.layout); len(wait) > 0 {
		must.OK(t, n.ResetGPUs(t.Context(), wait...))
		partition(t, n, c.layout)
	}
	return n
}

// partition makes a layout. It returns the GPUs that must be reset first, and is run again then.
func partition(t *testing.T, h host.Host, layout map[int][]string) (wait []string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		must.OK(t, err)
	}

	gpus := func() []host.GPU {
		d, err := h.Driver(t.Context())
		must(err)
		return d.GPUs
	}

	for _, g := range gpus() {
		if _, on := layout[g.Index]; on && !g.Mode {
			must(h.SetMIGMode(t.Context(), g.Address, true))
		}
	}

	for _, g := range gpus() {
		if _, on := layout[g.Index]; on && !g.Mode {
			wait = append(wait, g.Address)
		}
	}

	if len(wait) > 0 {
		return wait
	}
	for _, g := range gpus() {
		for _, want := range layout[g.Index] {
			name, compute, _ := strings.Cut(want, "/")
			create(t, h, g, name, compute)
		}
	}

	return nil
}

// create makes a partition where there is room for it.
func create(t *testing.T, h host.Host, g host.GPU, name, compute string) {
	t.Helper()
	p := g.Profiles[slices.IndexFunc(g.Profiles, func(p host.Profile) bool {
		return p.Name == name
	})]
	id, err := 0, error(nil)
	for _, at := range p.Places {
		if id, err = h.CreateInstance(t.Context(), g.Address, p.ID, at); err == nil {
			break
		}
	}

	must.That(t, err == nil, "%s: %v", name, err)
	if compute == "" {
		compute = fmt.Sprint(p.Slices)
	}
	for _, size := range strings.Split(compute, ",") {
		kind := p.Compute[slices.IndexFunc(p.Compute, func(c host.ComputeProfile) bool {
			return fmt.Sprint(c.Slices) == size
		})]
		_, err := h.CreateCompute(t.Context(), g.Address, id, kind.ID, host.Span{})
		must.That(t, err == nil, "%s/%s: %v", name, size, err)
	}
}

func TestGPULabelsAreGFDs(t *testing.T) {
	for _, c := range labelCases() {
		t.Run(c.name, func(t *testing.T) {
			golden := filepath.Join("testdata", "gfd", c.name+".txt")
			if *gfd != "" {
				askGFD(t, c, *gfd, golden)
			}
			f := must.Get(facts.Gather(t.Context(), c.node(t), facts.Needs{Driver: true}))(t)
			s := spec.Spec{
				Sharing: spec.Sharing{
					Strategy:    c.strategy,
					TimeSlicing: c.replicas,
					MPS:         c.mps,
				},
				Node: spec.Node{GPULabels: true},
			}
			labels, why := gpuLabels(s, f)
			must.That(t, why == "" && labels[gpuPresent] == "true", "%v, %q", labels, why)
			delete(labels, gpuPresent)
			data := must.Get(os.ReadFile(golden))(t)
			check.None(t, cmp.Diff(lines(string(data)), labels), "(-GPU Feature Discovery +gpuadm):")
		})
	}
}

func lines(text string) map[string]string {
	labels := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		labels[key] = value
	}

	return labels
}

func TestGPULabelsWhyNot(t *testing.T) {
	c := labelCases()[0]
	f := must.Get(facts.Gather(t.Context(), c.node(t), facts.Needs{Driver: true}))(t)
	present := map[string]string{gpuPresent: "true"}
	t4 := []facts.PCI{{
		Address: "0000:17:00.0",
		Vendor:  "10de",
		Device:  "1eb8",
		Class:   "030200",
	}}
	for name, c := range map[string]struct {
		change func(*spec.Spec, *facts.Facts)
		want   map[string]string
		why    string
	}{
		"not asked for":   {func(s *spec.Spec, _ *facts.Facts) { s.Node.GPULabels = false }, nil, "gpu_labels is false"},
		"in a folder":     {func(_ *spec.Spec, f *facts.Facts) { f.Live = false }, nil, "the GPUs of a machine are known once it runs"},
		"no GPU":          {func(_ *spec.Spec, f *facts.Facts) { f.Driver = nil }, nil, "there is no NVIDIA GPU"},
		"an NVSwitch":     {func(_ *spec.Spec, f *facts.Facts) { f.Driver, f.GPUs = nil, []facts.PCI{{Class: "068000"}} }, nil, "there is no NVIDIA GPU"},
		"no driver":       {func(_ *spec.Spec, f *facts.Facts) { f.Driver, f.GPUs, f.NoDriver = nil, t4, "it is not loaded" }, present, "it is not loaded"},
		"GFD runs":        {func(_ *spec.Spec, f *facts.Facts) { f.GFD = "process 7" }, present, "GPU Feature Discovery runs: process 7"},
		"a GPU is lost":   {func(_ *spec.Spec, f *facts.Facts) { f.Driver.GPUs[3].Lost = "gone" }, present, "GPU " + f.Driver.GPUs[3].Address + " does not answer: gone"},
		"no GPU answers":  {func(_ *spec.Spec, f *facts.Facts) { f.Driver.GPUs = nil }, present, "the driver sees no GPU"},
		"strange version": {func(_ *spec.Spec, f *facts.Facts) { f.Driver.Version = "580" }, present, `the driver's version "580" is not of the form X.Y or X.Y.Z`},
		"no shares": {func(s *spec.Spec, f *facts.Facts) {
			g := &f.Driver.GPUs[0]
			s.Sharing.Strategy, g.Mode = "single", true
			g.Instances = []host.Instance{{Profile: 19, Compute: []host.ComputeInstance{{}}}}
		}, present, "the driver does not say what the partitions of GPU " + f.Driver.GPUs[0].Address + " have"},
	} {
		s := spec.Spec{Node: spec.Node{GPULabels: true}}
		f := f
		driver := *f.Driver
		driver.GPUs = slices.Clone(driver.GPUs)
		f.Driver = &driver
		c.change(&s, &f)
		labels, why := gpuLabels(s, f)
		diff := cmp.Diff(c.want, labels)
		check.That(t, diff == "" && why == c.why, "%s: %q, want %q (-want +got):\n%s", name, why, c.why, diff)
	}
}

// TestGPULabelsBeside is about what the fake driver's machine does not have.
func TestGPULabelsBeside(t *testing.T) {
	c := labelCases()[0]
	f := must.Get(facts.Gather(t.Context(), c.node(t), facts.Needs{Driver: true}))(t)
	s := spec.Spec{Node: spec.Node{GPULabels: true}}
	says := func(key, want string) {
		t.Helper()
		labels, why := gpuLabels(s, f)
		got, there := labels["nvidia.com/"+key]
		check.That(t, why == "" && got == want && there != (want == ""), "%s = %q, %q, want %q", key, got, why, want)
	}

	for _, g := range f.Driver.GPUs {
		f.GPUs = append(f.GPUs, facts.PCI{
			Address: g.Address,
			Vendor:  "10de",
			Class:   "030200",
		})
	}

	says("gpu.mode", "compute")
	f.GPUs[2].Class = "030000"
	says("gpu.mode", "unknown")
	for i := range f.GPUs {
		f.GPUs[i].Class = "030000"
	}
	says("gpu.mode", "graphics")
	f.GPUs = f.GPUs[1:]
	says("gpu.mode", "unknown")

	f.VGPU = &facts.VGPU{Version: "550.90", Branch: "r550_00"}
	says("vgpu.present", "true")
	says("vgpu.host-driver-version", "550.90")
	says("vgpu.host-driver-branch", "r550_00")

	says("gpu.clique", "5a61686f-767d-848b-9299-a0a7aeb5bcc3.0")
	f.Driver.GPUs[3].Fabric.Clique = 9
	says("gpu.clique", "")
	f.Driver.GPUs[3].Fabric.Status = "UNKNOWN"
	says("gpu.clique", "5a61686f-767d-848b-9299-a0a7aeb5bcc3.0")
	f.Driver.GPUs[3].Fabric = host.Fabric{
		State:   "completed",
		Cluster: "11111111-0000-4000-8000-000000000000",
	}
	says("gpu.clique", "")

	f.Machine = strings.Repeat("a", 64)
	says("gpu.machine", "")
	f.Machine = "-x"
	says("gpu.machine", "")
	f.Machine = " A  (B)  µC/D "
	says("gpu.machine", "A-B-CD")

	f.Driver.Version = "470.57"
	labels, _ := gpuLabels(s, f)
	v, there := labels["nvidia.com/cuda.driver-version.revision"]
	check.That(t, v == "" && there, "revision %q, %t", v, there)
	check.That(t, !slices.ContainsFunc(slices.Collect(maps.Keys(labels)), func(k string) bool {
		return strings.Contains(k, "timestamp")
	}), "a timestamp")
}

func TestFamily(t *testing.T) {
	for compute, want := range map[string]string{
		"3.7": "kepler", "5.2": "maxwell", "6.1": "pascal", "7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere",
		"8.9": "ada-lovelace", "9.0": "hopper", "10.0": "blackwell", "10.3": "blackwell", "12.0": "blackwell", "13.0": "rubin", "11.0": "undefined",
	} {
		major, minor, _ := strings.Cut(compute, ".")
		check.Equal(t, family(major, minor), want, "%s:", compute)
	}
}

func TestAutoscalerLabels(t *testing.T) {
	gpu := func(model string) []facts.PCI {
		return []facts.PCI{{
			Class: "068000",
			Model: "NVSwitch (H100)",
		}, {Class: "030200", Model: model}}
	}

	aws := func(value string) map[string]string {
		return map[string]string{"k8s.amazonaws.com/accelerator": value}
	}
	for name, c := range map[string]struct {
		facts facts.Facts
		want  map[string]string
	}{
		"no GPU":      {facts.Facts{Cloud: instance.Cloud{Name: "aws"}}, nil},
		"no cloud":    {facts.Facts{GPUs: gpu("T4")}, nil},
		"EC2, T4":     {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-tesla-t4")},
		"EC2, A100":   {facts.Facts{GPUs: gpu("A100 40GB"), Cloud: instance.Cloud{Name: "aws", Managed: "eks"}}, aws("nvidia-tesla-a100")},
		"EC2, A10G":   {facts.Facts{GPUs: gpu("A10G"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-a10g")},
		"EC2, L40S":   {facts.Facts{GPUs: gpu("L40S"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-l40s")},
		"EC2, H100":   {facts.Facts{GPUs: gpu("H100 80GB"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-h100")},
		"EC2, RTX":    {facts.Facts{GPUs: gpu("RTX PRO 6000 Server"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-rtx-pro-6000-server")},
		"EC2, new":    {facts.Facts{GPUs: gpu(""), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia")},
		"GKE":         {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "gce", Managed: "gke"}}, nil},
		"AKS, a pool": {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "azure", Managed: "aks"}}, nil},
	} {
		check.None(t, cmp.Diff(c.want, autoscalerLabels(c.facts)), "%s (-want +got):", name)
	}
}

// TestCliqueYields: gpu.clique is gpuadm's to set until NVIDIA's DRA driver sets it (NVIDIA/gpu-operator
// pull 2699); then what is there stays, and a label that is missing is set.
func TestCliqueYields(t *testing.T) {
	for _, x := range []struct{ process, found, want string }{
		{"", "theirs", "ours"},
		{"process 7", "theirs", "theirs"},
		{"process 7", "", "ours"},
	} {
		r := readyStage{facts: facts.Facts{Clique: x.process}}
		got, err := r.label(gpuClique, "ours").To(converge.State(x.found))
		check.That(t, err == nil && string(got) == x.want, "%+v: %q, %v", x, got, err)
		other, err := r.label("example.com/a", "ours").To("theirs")
		check.That(t, err == nil && other == "ours", "another label: %q, %v", other, err)
	}

	const process = "/proc/41/"
	machine := "-- proc/41/comm --\ncompute-domain-\n" +
		"-- proc/41/status --\nName:\tcompute-domain-\nUid:\t0\t0\t0\t0\n-- proc/41/environ --\n"
	for environment, want := range map[string]string{
		"A=b\x00GPU_CLIQUE_LABEL_ENABLED=true\x00": "process 41",
		"GPU_CLIQUE_LABEL_ENABLED=false\x00":       "",
	} {
		n := must.Get(simhost.New([]byte(machine)))(t)
		must.OK(t, n.WriteFile(process+"environ", []byte(environment), host.Attr{Mode: 0o400}))
		f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Driver: true}))(t)
		check.Equal(t, f.Clique, want, "who sets the label")
	}
}
