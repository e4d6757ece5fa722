// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/pci"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// owner finds out which program rewrites the node's /etc/containerd/config.toml, at boot or when
// the node is provisioned: that program overwrites other changes. It returns the owner and the sign
// seen.
// Flatcar and plain distributions rewrite nothing; eks-hybrid does so only when its administrator
// calls it.
func (l *look) owner(os OS) (owner, why string) {
	why = l.cloud.ManagedWhy
	if by := platform.Of(l.cloud.Managed).Engine.Writer; by != "" {
		return by, why
	}
	switch os.ID {
	case "bottlerocket", "cos", "talos":
		// /etc is made at each boot, from settings or from the image.
		return os.ID, "ID=" + os.ID + " in os-release"
	}
	return "", ""
}

// dynamicMIG says by which sign NVIDIA's DRA driver makes partitions as pods ask for them: its
// plugin runs with the gate DynamicMIG, which its chart hands over in the environment. Sources:
// kubernetes-sigs/dra-driver-nvidia-gpu, pkg/featuregates/featuregates.go and
// deployments/helm/dra-driver-nvidia-gpu/templates/kubeletplugin.yaml.
func (l *look) dynamicMIG() string {
	if !l.v.Live() {
		return ""
	}
	for _, pid := range l.processes("gpu-kubelet-plu") { // gpu-kubelet-plugin
		for _, variable := range strings.Split(l.attr("/proc/"+pid+"/environ"), "\x00") {
			gates, is := strings.CutPrefix(variable, "FEATURE_GATES=")
			if is && slices.Contains(strings.Split(gates, ","), "DynamicMIG=true") {
				return "process " + pid
			}
		}
	}
	return ""
}

// The owner of a machine's driver, by signs on the machine.
const (
	GPUOperator = "NVIDIA's GPU Operator"
	OSTree      = "the ostree image that this system is"
	EKSImage    = "the EKS image"
	CIQDriver   = "CIQ's packages" // which Google's Rocky Linux images have
	OtherOwner  = "another owner"  // nothing more is known of it
)

// eksLoaders are the units by which EKS's accelerated images of Amazon Linux 2023 load their driver
// at each boot: from archives of DKMS, and since 2026-09 from prebuilt trees, which are laid over
// /usr. rpm names a proprietary package whichever modules are loaded.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/gpu at 81fec2e8, and
// pulls 2783, 2792 and 2819.
func eksLoaders() []string { return []string{"nvidia-kmod-load.service", "nvidia-setup.service"} }

// LoadsDriver names the unit that loads the driver of EKS's image just now; "" if none does.
func LoadsDriver(ctx context.Context, v host.View) string {
	for _, name := range eksLoaders() {
		if u, err := v.Unit(ctx, name); err == nil && u.Active == "activating" {
			return name
		}
	}
	return ""
}

// Owner is another owner of a part of the node.
type Owner struct {
	Name string `json:"name"`           // GPUOperator, a platform's, OSTree, EKSImage, OtherOwner; of partitions NVIDIA's MIG manager, a cloud or a unit
	Why  string `json:"why"`            // by which sign
	Ends string `json:"ends,omitempty"` // what makes an owner of the partitions leave them
}

func (o Owner) String() string { return o.Name + " (" + o.Why + ")" }

// driverOwner says who else brings the driver, by signs on the machine. For distributions that
// bring one os-release is the sign: owners in drivers/catalog/repositories.toml. What an operator
// can do about an owner is in takeOver (drivers/owner.go).
func (l *look) driverOwner(ctx context.Context, m Modules) *Owner {
	if !l.v.Live() {
		return l.eksImage() // what is in /run is this boot's
	}
	// The driver container mounts its root for others to find, holds its process's file while it
	// runs, and says by another one that it is ready. The operator's validator has files beside it,
	// also where the driver is the machine's own.
	// Source: nvidia-driver in https://github.com/NVIDIA/gpu-driver-container; validator in
	// https://github.com/NVIDIA/gpu-operator.
	const container = "/run/nvidia/driver"
	if _, err := l.v.Stat(container); !missing(err) { // a node with pods has hundreds of mounts, for the kernel to print
		for line := range strings.Lines(l.attr("/proc/self/mounts")) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == container {
				return &Owner{Name: GPUOperator, Why: container + " is mounted, by its driver container"}
			}
		}
	}
	if sign := l.first("/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready"); sign != "" {
		return &Owner{Name: GPUOperator, Why: "its driver container has written " + sign}
	}
	if by := platform.Of(l.cloud.Managed).Driver; l.first(by.Files...) != "" {
		return &Owner{Name: by.Title, Why: l.first(by.Files...) + " is there"}
	}
	// Made by ostree-prepare-root(1) at each boot; on such a system /usr is read-only, and packages
	// come with the image.
	if booted := "/run/ostree-booted"; l.has(booted) {
		return &Owner{Name: OSTree, Why: booted + " is there"}
	}
	if image := l.eksImage(); image != nil {
		return image
	}
	return l.unpackaged(ctx, m)
}

// packagers are those whose packages of the driver are of no source in drivers/catalog, by how the
// names begin, and what the owner is called: "" is another one, or AKS. Google's images of Rocky
// Linux have CIQ's, of which Secure Boot takes the modules; AKS installs Microsoft's on Azure
// Linux. Sources: https://docs.ciq.com/scn (nvidia-dc-driver580, kmod-nvidia-dc-open580) and
// package_installed_test.go of https://github.com/GoogleCloudPlatform/cloud-image-tests,
// test_suites/packagevalidation; DISTROS.md of
// https://github.com/NVIDIA/yum-packaging-precompiled-kmod (cuda-open-hwe) and azurelinux in
// https://github.com/NVIDIA/gpu-driver-container (cuda); xorg-x11-drv-nvidia.spec of
// https://github.com/rpmfusion/xorg-x11-drv-nvidia and nvidia-x11-drv.spec of
// https://github.com/elrepo/packages, with nvidia-driver.spec of
// https://github.com/negativo17/nvidia-driver, which conflicts with both. Evidence of 2026-11; out
// of date where dnf refuses to install a driver beside another's files.
func packagers() [][2]string {
	return [][2]string{{"nvidia-dc-", CIQDriver}, {"cuda-", ""}, {"xorg-x11-drv-nvidia", ""}, {"nvidia-x11-drv", ""}}
}

// unpackaged finds a driver that is loaded and belongs to no package of a source that gpuadm knows:
// another program brought it. dpkg's lists of files are read, and rpm is asked. A driver of
// NVIDIA's installer has a log, and the stages know it. AKS's provisioning runs that installer,
// too, with its libraries in a folder of its own. Sources: Azure/aks-gpu at dde3239, install.sh
// (GPU_DEST=/usr/bin), and drivers/runfile.go.
func (l *look) unpackaged(ctx context.Context, m Modules) *Owner {
	const lists, installer = "/var/lib/dpkg/info", "/var/lib/nvidia/log"
	version, _ := LoadedDriver(l.v)
	by := platform.Of(l.cloud.Managed).Driver
	if version == "" || (by.Installer == "" || !l.has(by.Installer)) && l.has(installer) {
		return nil
	}
	names := l.names(lists)
	for _, name := range names {
		if strings.Contains(name, "nvidia") && strings.HasSuffix(name, ".list") && bytes.Contains(l.read(lists+"/"+name), []byte("/libnvidia-ml.so.")) {
			return nil
		}
	}
	rpm := noPackage
	if len(names) == 0 {
		rpm = l.rpmOf(ctx, m)
	}
	owner := &Owner{Name: OtherOwner, Why: "driver " + version + " is loaded, and no package has its files"}
	if by.Unpackaged {
		owner.Name = by.Title
	}
	packager := slices.IndexFunc(packagers(), func(p [2]string) bool { return strings.HasPrefix(rpm, p[0]) })
	switch {
	case packager >= 0:
		owner.Name, owner.Why = cmp.Or(packagers()[packager][1], owner.Name), rpm+" is installed"
	case rpm != noPackage:
		return nil
	}
	return owner
}

const noPackage = "of no package"

// rpmOf is the package that has the driver's library: rpm is asked once a boot, and of its own file
// first, since a database that does not answer knows no package of that either. "" if rpm cannot be
// asked. A library that lies in none of the folders in which packages have it is of no package.
// Source: rpm(8), "rpm -q --file" and EXIT STATUS.
func (l *look) rpmOf(ctx context.Context, m Modules) string {
	const rpm = "/usr/bin/rpm"
	switch {
	case !l.v.Runs() || !l.has(rpm):
		return ""
	case len(m.Libraries) == 0:
		return noPackage
	}
	file := m.Libraries[0].Path
	info, err := l.v.Stat(file)
	if err != nil {
		return ""
	}
	is, _ := l.cache.modules.once(view.Machine(l.v), moduleKey{file, info.Size, info.Ctime.UTC()}, func() (ModuleFile, error) {
		if _, err := l.v.Ask(ctx, rpm, "-qf", rpm); err != nil {
			return ModuleFile{}, err
		}
		out, err := l.v.Ask(ctx, rpm, "-qf", file)
		if failed := (*host.CommandError)(nil); errors.As(err, &failed) && failed.Code == 1 {
			return ModuleFile{Path: file, Version: noPackage}, nil
		}
		return ModuleFile{Path: file, Version: strings.TrimSpace(string(out))}, err
	})
	return is.Version
}

// eksImage recognises EKS's images by their own units; NVIDIA's packages have no units of these
// names.
func (l *look) eksImage() *Owner {
	for _, name := range eksLoaders() {
		if at := "/etc/systemd/system/" + name; l.has(at) {
			return &Owner{Name: EKSImage, Why: at + " is there"}
		}
	}
	return nil
}

// VGPU is what a virtual GPU says of the driver on the hypervisor that cut it out of a real one.
type VGPU struct {
	Version string `json:"version,omitempty"` // 550.90
	Branch  string `json:"branch,omitempty"`  // r550_00
}

// gfd returns the sign that GPU Feature Discovery labels this node; "" if there is none.
//
// It runs in a pod and hands its labels over either in the API or in a file, both to Node Feature
// Discovery. The link that kubelet keeps in /var/log/containers for each container names pod and
// container. It exists from the boot on, before kubelet has started the pod again. Source:
// https://github.com/NVIDIA/k8s-device-plugin, cmd/gpu-feature-discovery and the names in
// deployments/helm; kubernetes' pkg/kubelet/kuberuntime/legacy.go for the links.
func (l *look) gfd() string {
	if !l.v.Live() {
		return ""
	}
	const file, logs = "/etc/kubernetes/node-feature-discovery/features.d/gfd", "/var/log/containers"
	if l.has(file) {
		return file
	}
	for _, name := range l.names(logs) {
		if strings.Contains(name, "gpu-feature-discovery") {
			return logs + "/" + name
		}
	}
	if pids := l.processes("gpu-feature-dis"); len(pids) > 0 { // gpu-feature-discovery
		return "process " + pids[0]
	}
	return ""
}

// machine is the firmware's name of the machine, "unknown" where it has none.
func (l *look) machine() string {
	name, err := l.v.ReadFile("/sys/class/dmi/id/product_name")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(name))
}

// vgpu looks for a virtual GPU.
func (l *look) vgpu(gpus []PCI) *VGPU {
	for _, p := range gpus {
		var config [256]byte // the part with the capabilities; only root gets more than 64 bytes
		n, err := l.v.ReadAt(pci.Bus+"/"+p.Address+"/config", config[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		if v := vgpu(config[:n]); v != nil {
			return v
		}
	}
	return nil
}

// vgpu reads PCI configuration space, nil if it is not a virtual GPU's. Those have a vendor's
// capability (id 9) that begins with "VF" and holds records of a type and a length; type 0 is the
// host's driver: ten bytes version, ten bytes branch.
// Sources: PCI Local Bus Specification 3.0, 6.7; https://github.com/NVIDIA/k8s-device-plugin,
// internal/vgpu.
func vgpu(config []byte) *VGPU {
	if len(config) < 256 || config[6]&0x10 == 0 { // status: has capabilities
		return nil
	}
	at := int(config[0x34])
	for range 64 { // there is no room for more, and a chain may loop
		if at == 0 || at+5 > len(config) {
			return nil
		}
		if config[at] == 9 {
			break
		}
		at = int(config[at+1])
	}
	if config[at] != 9 || config[at+3] != 'V' || config[at+4] != 'F' {
		return nil
	}
	records := config[at+5 : max(at+5, min(len(config), at+int(config[at+2])))]
	for len(records) >= 2 && records[0] != 0 && records[1] >= 2 && int(records[1]) <= len(records) {
		records = records[records[1]:]
	}
	v := &VGPU{}
	if len(records) >= 22 && records[0] == 0 {
		v.Version, v.Branch = strings.Trim(string(records[2:12]), "\x00"), strings.Trim(string(records[12:22]), "\x00")
	}
	return v
}
