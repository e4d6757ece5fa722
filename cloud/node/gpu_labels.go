// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
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
	case f.Driver == nil && !slices.ContainsFunc(f.GPUs, facts.PCI.Display):
		return nil, "there is no NVIDIA GPU"
	}
	labels = map[string]string{gpuPresent: "true"}
	switch {
	case f.GFD != "":
		return labels, "GPU Feature Discovery runs: " + f.GFD
	case f.Driver == nil:
		return labels, cmp.Or(f.NoDriver, "the driver was not asked")
	}
	found := discovery{labels: map[string]string{}, replicas: s.Sharing.Replicas(), mps: s.Sharing.MPS > 0, driver: *f.Driver}
	if why = found.all(s.Sharing.Strategy, f); why != "" {
		return labels, why
	}
	// A value that Kubernetes refuses would stop kubelet from registering. Node Feature Discovery
	// drops such labels too: https://github.com/kubernetes-sigs/node-feature-discovery,
	// pkg/apis/nfd/validate.
	valid := regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	maps.DeleteFunc(found.labels, func(_, value string) bool { return !valid.MatchString(value) })
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
	d.set("mig.capable", slices.ContainsFunc(d.driver.GPUs, func(g host.GPU) bool { return g.MIG }))
	d.set("mps.capable", d.mps) // only if pods share GPUs by MPS; the DaemonSet of its control daemon selects nodes by the label
	if clique := clique(d.driver.GPUs); clique != "" {
		d.set("gpu.clique", clique)
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

func (d *discovery) set(name string, value any) { d.labels["nvidia.com/"+name] = fmt.Sprint(value) }

// versions sets the labels of the driver's version and of the newest CUDA that it supports, each in
// the current and the former format.
func (d *discovery) versions() bool {
	parts := strings.Split(d.driver.Version, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return false
	}
	parts = append(parts, "")[:3]
	for i, names := range [3][2]string{{"major", "major"}, {"minor", "minor"}, {"revision", "rev"}} {
		d.set("cuda.driver-version."+names[0], parts[i])
		d.set("cuda.driver."+names[1], parts[i])
	}
	d.set("cuda.driver-version.full", d.driver.Version)
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
	counts, whole := map[string]int{}, map[string]bool{}
	for _, g := range d.driver.GPUs {
		counts[g.Name]++
		whole[g.Name] = whole[g.Name] || !g.Mode
	}
	weight := func(g host.GPU) int {
		if whole[g.Name] {
			return len(d.driver.GPUs) + counts[g.Name]
		}
		return counts[g.Name]
	}
	rank := func(a, b host.GPU) int { return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Name, b.Name)) }
	g := slices.MinFunc(d.driver.GPUs, rank)
	d.offer("gpu", counts[g.Name], g.Name)
	if !whole[g.Name] { // no pod gets a GPU in MIG mode as a whole
		d.set("gpu.product", sanitise(g.Name))
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

// offer describes what pods can ask for under a name: gpu, mig-1g.10gb. Only whole GPUs, and
// partitions offered under the same name, are shared: the device plugin's config lists the shared
// names.
func (d *discovery) offer(name string, count int, product ...string) {
	for i := range product {
		product[i] = sanitise(product[i])
	}
	replicas, strategy := 1, "none"
	if d.replicas > 1 && name == "gpu" {
		replicas, strategy, product = d.replicas, "time-slicing", append(product, "SHARED")
		if d.mps {
			strategy = "mps"
		}
	}
	d.set(name+".product", strings.Join(product, "-"))
	d.set(name+".count", count)
	d.set(name+".replicas", replicas)
	d.set(name+".sharing-strategy", strategy)
}

// sanitise makes a name a valid label value.
func sanitise(name string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-_. ", r):
			return r
		}
		return -1
	}, name)), "-")
}

// family is the architecture's name by compute capability: NVIDIA's
// https://developer.nvidia.com/cuda-gpus.
func family(major, minor string) string {
	switch major {
	case "7":
		if minor < "5" {
			return "volta"
		}
		return "turing"
	case "8":
		if minor < "9" {
			return "ampere"
		}
		return "ada-lovelace"
	}
	name, ok := map[string]string{
		"1": "tesla", "2": "fermi", "3": "kepler", "5": "maxwell", "6": "pascal",
		"9": "hopper", "10": "blackwell", "12": "blackwell", "13": "rubin",
	}[major]
	if !ok {
		return "undefined"
	}
	return name
}

// gpuMode says by their PCI classes whether the GPUs drive displays.
func gpuMode(gpus []host.GPU, bus []facts.PCI) string {
	modes := map[string]bool{}
	for _, g := range gpus {
		mode := "unknown"
		for _, p := range bus {
			if p.Address == g.Address && len(p.Class) >= 4 {
				mode = map[string]string{"030000": "graphics", "030200": "compute"}[p.Class]
			}
		}
		modes[cmp.Or(mode, "unknown")] = true
	}
	if len(modes) != 1 {
		return "unknown"
	}
	return slices.Collect(maps.Keys(modes))[0]
}

// clique names the NVLink domain of all GPUs that are in one; "" if there is none, or more than
// one.
func clique(gpus []host.GPU) string {
	clusters, cliques := map[string]bool{}, map[uint32]bool{}
	for _, g := range gpus {
		if g.Fabric.State == "completed" && g.Fabric.Status == "" && g.Fabric.Cluster != "" {
			clusters[g.Fabric.Cluster], cliques[g.Fabric.Clique] = true, true
		}
	}
	if len(clusters) != 1 || len(cliques) != 1 {
		return ""
	}
	return slices.Collect(maps.Keys(clusters))[0] + "." + fmt.Sprint(slices.Collect(maps.Keys(cliques))[0])
}

// autoscalerLabels returns the labels by which cluster-autoscaler recognises a GPU node. The node
// must register with them: without the label a Ready node whose device plugin has not started yet
// counts as a node without GPUs, and cluster-autoscaler adds another; with it the node counts as
// not ready yet. Source: cluster-autoscaler's processors/customresources/gpu_processor.go and
// https://github.com/NVIDIA/k8s-device-plugin/issues/1746.
//
// GKE and AKS set their own labels on their pools, and Karpenter sets its own everywhere.
func autoscalerLabels(f facts.Facts) map[string]string {
	if f.Driver == nil && !slices.ContainsFunc(f.GPUs, facts.PCI.Display) {
		return nil
	}
	if f.Cloud.Name == "aws" { // cluster-autoscaler's cloudprovider/aws: GPULabel; EKS does not set it
		return map[string]string{"k8s.amazonaws.com/accelerator": accelerator(f)}
	}
	return nil
}

// accelerator names the GPU as cluster-autoscaler's own list for AWS does, which knows these:
// cloudprovider/aws/aws_cloud_provider.go, availableGPUTypes. gpuadm names newer GPUs like the
// newest in that list. The label must exist; its value matters only for limits that operators set
// by it.
func accelerator(f facts.Facts) string {
	model := ""
	for _, p := range f.GPUs { // known before there is a driver
		if p.Display() && p.Model != "" && model == "" {
			model = p.Model
		}
	}
	chip, _, _ := strings.Cut(strings.ToLower(model), " ")
	switch chip {
	case "":
		return "nvidia"
	case "k80", "p100", "v100", "t4", "a100":
		return "nvidia-tesla-" + chip
	case "rtx": // the first word is not enough
		chip = sanitise(strings.ToLower(model))
	}
	return "nvidia-" + sanitise(strings.ReplaceAll(chip, "/", "-"))
}
