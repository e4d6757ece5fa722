// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// gpuPresent says that the node has NVIDIA GPUs. GPU Feature Discovery does not write it: NVIDIA's
// charts and the GPU Operator select nodes by it, also for GPU Feature Discovery's own pods, so
// gpuadm keeps it where GPU Feature Discovery runs.
// Source: https://github.com/NVIDIA/k8s-device-plugin, deployments/helm values.yaml.
const gpuPresent = "nvidia.com/gpu.present"

// gpuClique names the NVLink domain that the GPUs are in.
const gpuClique = "nvidia.com/gpu.clique"

// gpuLabels returns exactly the labels that GPU Feature Discovery writes on such a machine: the
// node has them from its registration on, and nothing changes when GPU Feature Discovery starts. It
// leaves out the timestamp, which would change at each look. why says why there is only gpuPresent,
// or no label.
//
// The rules are those of https://github.com/NVIDIA/k8s-device-plugin, internal/lm, and the tests'
// goldens are its output on simulated machines. If it finds something that it cannot interpret, it
// writes no labels; neither does gpuadm.
func gpuLabels(s spec.Spec, f facts.Facts) (labels map[string]string, why string) {
	switch {
	case !s.Node.GPULabels:
		return nil, "gpu_labels is false"
	case !f.Live:
		return nil, "the GPUs of a machine are known once it runs"
	case f.Driver == nil && !hasGPU(f):
		return nil, "there is no NVIDIA GPU"
	}

	labels = map[string]string{gpuPresent: "true"}
	switch {
	case f.GFD != "":
		return labels, "GPU Feature Discovery runs: " + f.GFD
	case f.Driver == nil:
		return labels, cmp.Or(f.NoDriver, "the driver was not asked")
	}

	found := discovery{
		labels:   map[string]string{},
		replicas: s.Sharing.Replicas(),
		mps:      s.Sharing.MPS > 0,
		driver:   *f.Driver,
	}
	why = found.all(strategyOn(s, *f.Driver), f)
	if why != "" {
		return labels, why
	}

	// A value that Kubernetes refuses would stop kubelet from registering. Node Feature Discovery
	// drops such labels too: https://github.com/kubernetes-sigs/node-feature-discovery,
	// pkg/apis/nfd/validate.
	maps.DeleteFunc(found.labels, func(_, value string) bool {
		return !spec.IsLabelValue(value)
	})
	maps.Copy(labels, found.labels)

	return labels, ""
}

// discovery is one reading of the machine's GPUs.
type discovery struct {
	labels   map[string]string
	replicas int  // pods that share a GPU; 1: none do
	mps      bool // they share it by CUDA MPS
	driver   host.Driver
}

// all determines all labels, or why there are none.
func (d *discovery) all(strategy string, f facts.Facts) (why string) {
	for _, g := range d.driver.GPUs {
		if g.Lost != "" {
			return "GPU " + g.Address + " does not answer: " + g.Lost
		}
	}

	if len(d.driver.GPUs) == 0 {
		return "the driver sees no GPU"
	}
	if !d.versions() {
		return "the driver's version " + strconv.Quote(d.driver.Version) + " is not of the form X.Y or X.Y.Z"
	}

	d.set("gpu.machine", sanitise(f.Machine))
	d.set("gpu.mode", gpuMode(d.driver.GPUs, f.GPUs))
	d.set("mig.capable", slices.ContainsFunc(d.driver.GPUs, func(g host.GPU) bool {
		return g.MIG
	}))
	// Only if pods share GPUs by MPS: the DaemonSet of its control daemon selects by it.
	d.set("mps.capable", d.mps)
	if domain := clique(d.driver.GPUs); domain != "" {
		d.labels[gpuClique] = domain
	}

	d.set("vgpu.present", f.VGPU != nil)
	if f.VGPU != nil {
		d.set("vgpu.host-driver-version", f.VGPU.Version)
		d.set("vgpu.host-driver-branch", f.VGPU.Branch)
	}

	d.gpus()
	if strategy == "single" || strategy == "mixed" {
		d.set("mig.strategy", strategy)
		return d.mig(strategy)
	}
	return ""
}

func (d *discovery) set(name string, value any) {
	d.labels["nvidia.com/"+name] = fmt.Sprint(value)
}

// versions sets the labels of the driver's version and of the newest CUDA that it supports, each in
// the current and the former format. It returns false if the driver's version has another form.
func (d *discovery) versions() bool {
	parts := strings.Split(d.driver.Version, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return false
	}
	parts = append(parts, "") // a version without a revision has an empty one

	d.set("cuda.driver-version.full", d.driver.Version)
	d.set("cuda.driver-version.major", parts[0])
	d.set("cuda.driver-version.minor", parts[1])
	d.set("cuda.driver-version.revision", parts[2])
	d.set("cuda.driver.major", parts[0])
	d.set("cuda.driver.minor", parts[1])
	d.set("cuda.driver.rev", parts[2])

	major, minor, ok := strings.Cut(d.driver.CUDA, ".")
	if !ok {
		return true
	}
	d.set("cuda.runtime-version.full", d.driver.CUDA)
	d.set("cuda.runtime-version.major", major)
	d.set("cuda.runtime-version.minor", minor)
	d.set("cuda.runtime.major", major)
	d.set("cuda.runtime.minor", minor)
	return true
}

// gpus describes whole GPUs. Of several models GPU Feature Discovery picks one at random, and
// prefers GPUs that are not partitioned; gpuadm picks the model with the most GPUs. The count
// includes all GPUs of that name.
func (d *discovery) gpus() {
	counts := map[string]int{}
	whole := map[string]bool{} // models with a GPU that is not in MIG mode
	for _, g := range d.driver.GPUs {
		counts[g.Name]++
		whole[g.Name] = whole[g.Name] || !g.Mode
	}

	weight := func(g host.GPU) int {
		if whole[g.Name] { // outweighs any model with partitioned GPUs only
			return len(d.driver.GPUs) + counts[g.Name]
		}
		return counts[g.Name]
	}

	g := slices.MinFunc(d.driver.GPUs, func(a, b host.GPU) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Name, b.Name))
	})

	if whole[g.Name] {
		d.offer("gpu", counts[g.Name], g.Name)
	} else { // no pod gets a GPU in MIG mode as a whole
		d.set("gpu.product", sanitise(g.Name))
		d.set("gpu.count", counts[g.Name])
		d.set("gpu.replicas", 0)
		d.set("gpu.sharing-strategy", "none")
	}

	if mib := g.Memory >> 20; mib != 0 {
		d.set("gpu.memory", mib)
	}
	if major, minor, ok := strings.Cut(g.Compute, "."); ok && major != "0" {
		d.set("gpu.family", family(major, minor))
		d.set("gpu.compute.major", major)
		d.set("gpu.compute.minor", minor)
	}
}

// offer describes what pods can ask for under a name: gpu, mig-1g.10gb. All names are shared alike:
// the device plugin's configuration lists each.
func (d *discovery) offer(name string, count int, product ...string) {
	for i := range product {
		product[i] = sanitise(product[i])
	}

	replicas := 1
	strategy := "none"
	if d.replicas > 1 {
		product = append(product, "SHARED")
		replicas = d.replicas
		strategy = "time-slicing"
		if d.mps {
			strategy = "mps"
		}
	}

	d.set(name+".product", strings.Join(product, "-"))
	d.set(name+".count", count)
	d.set(name+".replicas", replicas)
	d.set(name+".sharing-strategy", strategy)
}

// sanitise makes a name a valid label value: it drops other characters, and joins words by "-".
func sanitise(name string) string {
	valid := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		case strings.ContainsRune("-_. ", r):
			return r
		}
		return -1
	}, name)
	return strings.Join(strings.Fields(valid), "-")
}

// family is the architecture's name by compute capability, or else by its major part.
// Source: https://developer.nvidia.com/cuda-gpus.
func family(major, minor string) string {
	families := map[string]string{
		"1": "tesla", "2": "fermi", "3": "kepler", "5": "maxwell", "6": "pascal",
		"7.0": "volta", "7.2": "volta", "7": "turing",
		"8": "ampere", "8.9": "ada-lovelace",
		"9": "hopper", "10": "blackwell", "12": "blackwell", "13": "rubin",
	}
	return cmp.Or(families[major+"."+minor], families[major], "undefined")
}

// gpuMode says by their PCI classes whether the GPUs drive displays: "graphics" or "compute" if
// they are all alike, else "unknown".
func gpuMode(gpus []host.GPU, bus []facts.PCI) string {
	common := ""
	for _, g := range gpus {
		mode := classMode(bus, g.Address)
		if common != "" && mode != common {
			return "unknown"
		}
		common = mode
	}

	return cmp.Or(common, "unknown")
}

// classMode returns the mode of the GPU at an address of the bus.
func classMode(bus []facts.PCI, address string) string {
	mode := "unknown"
	for _, p := range bus {
		if p.Address != address {
			continue
		}
		switch p.Class {
		case "030000":
			mode = "graphics"
		case "030200":
			mode = "compute"
		}
	}

	return mode
}

// clique names the NVLink domain of all GPUs that are in one; "" if there is none, or more than
// one.
func clique(gpus []host.GPU) string {
	common := ""
	for _, g := range gpus {
		if g.Fabric.State != "completed" || g.Fabric.Status != "" || g.Fabric.Cluster == "" {
			continue
		}
		name := fmt.Sprintf("%s.%d", g.Fabric.Cluster, g.Fabric.Clique)
		if common != "" && name != common {
			return ""
		}
		common = name
	}

	return common
}
