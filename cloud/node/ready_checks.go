// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func noDriver(ctx context.Context, v host.View, f facts.Facts) (string, error) {
	if f.DriverAgain {
		return "", host.NewProcess
	}
	if loader := facts.LoadsDriver(ctx, v); loader != "" {
		return "", things.DriverLoads(loader)
	}
	return "no NVIDIA driver answers: " + cmp.Or(f.NoDriver, "it was not asked"), nil
}

// wrongDriver says what is wrong with the loaded driver.
func wrongDriver(s spec.Spec, d host.Driver) string {
	pin := s.Driver.Version
	switch {
	case pin != "" && d.Version != pin && !strings.HasPrefix(d.Version, pin+"."):
		return fmt.Sprintf("driver %s is loaded, node.toml wants %s", d.Version, pin)
	case d.NVML != "" && d.NVML != d.Version:
		return fmt.Sprintf("driver %s is loaded, and its library is %s", d.Version, d.NVML)
	}
	return ""
}

// missingGPUs compares what the driver has with the bus and with the spec. A GPU that is passed
// through to a virtual machine is not the driver's.
func missingGPUs(s spec.Spec, f facts.Facts) string {
	bus, driver := 0, 0
	for _, p := range f.GPUs {
		if p.Display() && p.Driver != "vfio-pci" {
			bus++
		}
	}
	for _, g := range f.Driver.GPUs {
		if g.Lost != "" {
			return fmt.Sprintf("GPU %s does not answer: %s", g.Address, g.Lost)
		}
		driver++
	}
	switch {
	case driver != bus:
		return fmt.Sprintf("the PCI bus has %s, the driver has %d", trouble.Count(bus, "GPU"), driver)
	case s.Driver.GPUCount > 0 && driver != s.Driver.GPUCount:
		return fmt.Sprintf("the driver has %s, node.toml expects %d", trouble.Count(driver, "GPU"), s.Driver.GPUCount)
	}
	return ""
}

// unlicensed names a GPU of a vGPU guest without a licence: CUDA fails on it, at once or after the
// grace period.
func unlicensed(s spec.Spec, f facts.Facts) error {
	for _, g := range f.Driver.GPUs {
		if why := g.Unlicensed(); why != "" && (f.VGPU != nil || s.Has("driver.grid")) {
			return trouble.Wait{For: fmt.Sprintf("GPU %s %s", g.Address, why), Try: []string{"journalctl -u nvidia-gridd, which says why"}, Err: noLicence}
		}
	}
	return nil
}

// fabricOpen says what keeps the GPUs from using NVLink. The driver registers them with the fabric,
// in seconds to minutes. A GPU in MIG mode counts as registered: it cannot use NVLink, though the
// links stay active on H100 and later. Sources: "Interoperability with MIG" in
// https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html; NVIDIA's answer in
// https://github.com/NVIDIA/nccl/issues/1716.
func fabricOpen(d host.Driver) (string, error) {
	for _, g := range d.GPUs {
		switch {
		case g.Mode || inFabric(g):
		case g.Fabric.State == "in-progress":
			return "", trouble.Wait{
				For: fmt.Sprintf("GPU %s is still registering with the NVLink fabric", g.Address),
				Try: []string{"if it takes longer than some minutes: systemctl status nvidia-fabricmanager"}, Err: fabricForming,
			}
		case g.Fabric.State == "completed":
			return fmt.Sprintf("GPU %s could not register with the NVLink fabric: %s", g.Address, g.Fabric.Status), nil
		default:
			return fmt.Sprintf("GPU %s has not registered with the NVLink fabric: %s", g.Address, g.Fabric.State), nil
		}
	}
	return "", nil
}

// inFabric says whether a GPU has registered with the fabric, or has none to register with.
func inFabric(g host.GPU) bool {
	return g.Fabric.State == "" || g.Fabric.State == "completed" && g.Fabric.Status == ""
}

// readyNotes names the GPUs that the node would wait for without MIG mode, and what is not shared.
// The device plugin shares the resources that its configuration lists:
// https://github.com/NVIDIA/k8s-device-plugin, api/config/v1/replicas.go; PluginManifest lists
// GPUs.
func readyNotes(s spec.Spec, f facts.Facts) (notes []string) {
	if s.Sharing.TimeSlicing > 0 && s.Sharing.Strategy == "mixed" {
		notes = append(notes, `time_slicing with strategy = "mixed" shares GPUs without MIG alone: partitions have names of their own, and one pod each`)
	}
	if !TellsCluster(s) || f.Driver == nil {
		return notes
	}
	var exempt []string
	for _, g := range f.Driver.GPUs {
		if g.Mode && !inFabric(g) {
			exempt = append(exempt, g.Address)
		}
	}
	if len(exempt) == 0 {
		return notes
	}
	const why = "the node does not wait until GPUs in MIG mode have registered with the NVLink fabric, since they cannot use NVLink: "
	return append(notes, why+strings.Join(exempt, ", "))
}

// draDriver is NVIDIA's driver for dynamic allocation, under which its devices are published.
// Source: https://github.com/NVIDIA/k8s-dra-driver-gpu.
const draDriver = "gpu.nvidia.com"

// gpusReady waits until the GPUs work, until no monitor reports them faulty, and until they are
// offered.
func (r readyStage) gpusReady(ctx context.Context, v host.View, n *kube.Node) error {
	if err := cmp.Or(refuseSecondOwner(n, v.Now()), repairWaits(n)); err != nil {
		return err
	}
	if err := r.waits(ctx, v); err != nil {
		return err
	}
	return r.offered(ctx, v, n)
}

// offered waits, if the spec asks for it, until the cluster can allocate the planned number of this
// node's GPUs. The Node's status counts only after kubelet has reported in this boot: until the
// device plugin has registered again the API server shows the old number.
func (r readyStage) offered(ctx context.Context, v host.View, n *kube.Node) error {
	if !r.spec.Node.WaitForAllocatable && !advertised(r.spec, *r.facts.Driver, n) {
		return nil
	}
	if told := n.Status.NodeInfo.BootID; told != r.facts.BootID {
		return trouble.Wait{For: "kubelet has not reported since this boot", Try: []string{"systemctl status kubelet; journalctl -u kubelet"}, Err: notReported}
	}
	want, total, err := planned(r.spec, *r.facts.Driver)
	if err != nil {
		return err
	}
	var missing []string
	some := false
	for _, name := range slices.Sorted(maps.Keys(want)) {
		now := n.Status.Allocatable[name]
		some = some || now.Count() > 0
		if now.Count() != int64(want[name]) {
			missing = append(missing, fmt.Sprintf("%d of %d %s", now.Count(), want[name], name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if !some && !pluginServes(ctx, v) { // it may be the driver for dynamic allocation
		if has, ok, err := r.slices(ctx, v, n.Name); err != nil {
			return err
		} else if ok && has == total {
			return nil
		} else if ok {
			missing = []string{fmt.Sprintf("%d of %d devices of %s", has, total, draDriver)}
		}
	}
	w := trouble.Wait{For: "the node offers " + strings.Join(missing, ", "), Err: offersOther}
	if some {
		w.Try = []string{"see what the log of the device plugin says of the others: " + podsOn(n.Name)}
		return w
	}
	return r.noOffer(ctx, v, n, w)
}

// slices counts the devices that the DRA driver offers.
func (r readyStage) slices(ctx context.Context, v host.View, node string) (devices int, ok bool, err error) {
	c, err := r.session.ask(v, r.who)
	if err != nil {
		return 0, false, err
	}
	all, err := c.Slices(ctx, node)
	devices, ok = all[draDriver]
	return devices, ok, err
}

// planned returns the resources that the device plugin will offer for the GPUs' state, by name, and
// the number of devices.
// Source: https://github.com/NVIDIA/k8s-device-plugin, internal/rm and README: with strategy none
// partitions do not count; single offers them all under the GPUs' own name; mixed offers each kind
// under its own name, and whole GPUs too.
func planned(s spec.Spec, d host.Driver) (want map[string]int, total int, err error) {
	const gpu = "nvidia.com/gpu"
	want = map[string]int{}
	var offers []spec.Offers
	for _, g := range d.GPUs {
		parts, why := migDevices(g)
		if why != "" {
			return nil, 0, fmt.Errorf("cannot say what the device plugin shall offer: %s", why)
		}
		if !g.Mode {
			total++
		}
		total += len(parts)
		o := spec.Offers{GPU: fmt.Sprintf("GPU %d", g.Index), Model: g.Name, MIG: g.Mode}
		for _, p := range parts {
			o.Kinds = append(o.Kinds, p.name)
		}
		offers = append(offers, o)
		switch {
		case s.Sharing.Strategy == "none" || s.Sharing.Strategy == "" || !g.Mode:
			want[gpu]++
		case s.Sharing.Strategy == "single":
			want[gpu] += len(parts)
		default:
			for _, p := range parts {
				want["nvidia.com/mig-"+p.name]++
			}
		}
	}
	if t := s.Sharing.Single(offers); t != nil {
		return nil, 0, t
	}
	if n, ok := want[gpu]; ok { // partitions under names of their own are not shared
		want[gpu] = n * s.Sharing.Replicas()
	}
	return want, total, nil
}

// nodeadmComes waits for nodeadm-run, which gives containerd its configuration and then starts it
// and kubelet.
func nodeadmComes(yet error) error {
	return trouble.Wait{
		For: "nodeadm to configure containerd and start kubelet: " + trouble.OneLine(yet.Error()),
		Try: []string{"journalctl -u " + method.NodeadmRun + ", which says what it waits for", trouble.Command("apply") + ", once it has run"}, Err: nodeadmRuns,
	}
}
