// SPDX-License-Identifier: Apache-2.0

// Package facts finds out what machine this is: its OS, kernel, PCI devices, container engines and
// kubelet.
//
// Facts are data: stages compute their wants from them, and tests and bug reports contain them.
//
// Read the files in this order:
//
//   - the words: facts.go, gather.go, cache.go, reader.go, summary.go
//   - the machine: os.go, packager.go, dpkg.go, kernel.go, arch.go, node.go, cloud.go
//   - the GPUs: pci.go, models.go, vgpu.go, cdi.go
//   - the driver's modules: modules.go, modules_dep.go, libraries.go, dkms.go, signed_modules.go,
//     symbols.go
//   - who may sign modules: trust.go
//   - other owners of the driver and of partitions: owner.go, driver_owner.go, mig_owner.go,
//     mig_commands.go, feature_discovery.go
//   - container engines: engines.go, containerd.go, containerd_files.go, crio.go, docker.go,
//     named_engine.go, nvidia_runtimes.go, version.go
//   - kubelet: kubelet.go, kubelet_config.go, kubelet_flags.go, kubelet_credentials.go,
//     kubelet_endpoint.go, pod_resources.go, device_plugin.go
//   - distributions that start both: distributions.go, rancher.go, k0s.go, snap.go
//   - what systemd and the kernel say of a daemon: unitfile.go, command_line.go, assignments.go,
//     processes.go
package facts

import (
	"cmp"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Facts says what a machine is, whatever the spec wants of it.
type Facts struct {
	Live  bool `json:"live"`            // gathered from the running machine, not from a root folder
	Baked bool `json:"baked,omitempty"` // a root folder in which the machine's own programs run

	// Image is about the machines that an image is baked for, if they boot with Secure Boot.
	Image *Trust `json:"-"`
	// Day is 2026-11-22, UTC, by the clock of the gathering machine, which may be wrong.
	Day string `json:"-"`

	OS     OS     `json:"os"`
	Arch   string `json:"arch"` // amd64, arm64: of the machine's own files, not of this binary
	Kernel Kernel `json:"kernel"`

	// GPUs has all PCI functions of vendor 10de, NVSwitches and audio functions included; nil if
	// there is no PCI bus to read.
	GPUs []PCI `json:"gpus"`
	// RDMA: a network card behind PCIe reads and writes GPUs' memory: ConnectX, BlueField, EFA.
	RDMA bool `json:"rdma,omitempty"`

	Engines []Engine `json:"engines"`
	Kubelet Kubelet  `json:"kubelet"`

	// Programs are the NVIDIA runtimes that can be run: absolute paths, or names as a handler has
	// them.
	Programs []string `json:"programs,omitempty"`

	Cloud instance.Cloud `json:"cloud,omitzero"` // by the firmware and files: gpuadm does not ask the network

	Hostname  string `json:"hostname,omitempty"`
	MachineID string `json:"machineID,omitempty"`
	BootID    string `json:"bootID,omitempty"` // changes with each boot; "" in a root folder

	// Booting: gpuadm.service is starting, so a unit that is ordered after it, kubelet, cannot be
	// started now.
	Booting bool `json:"booting,omitempty"`

	Cgroup int    `json:"cgroup,omitempty"` // the version of cgroups: 1, 2; 0 if unknown
	CPUs   int    `json:"cpus,omitempty"`   // online ones; 0 if unknown
	Memory uint64 `json:"memory,omitempty"` // bytes that the kernel manages; 0 if unknown

	// The facts below cost more to find out. Needs asks for them.

	// Signed names the packages of signed modules that are available for target kernels; nil if
	// they were not asked for, or if the package lists have none for any kernel.
	Signed []string `json:"signed,omitempty"`
	// Symbols has the symbols that target kernels export, by kernel, where a file has their list.
	Symbols map[string]Symbols `json:"-"`

	Modules  *Modules     `json:"modules,omitempty"`
	Driver   *host.Driver `json:"driver,omitempty"`   // as the loaded driver reports; nil if none answers
	NoDriver string       `json:"noDriver,omitempty"` // why none answers
	NVMLSays string       `json:"-"`                  // NVML's name of that: host.NoDriver.Code

	DriverOwner *Owner  `json:"driverOwner,omitempty"` // another owner of the driver
	MIGOwner    *Owner  `json:"migOwner,omitempty"`    // another owner of the partitions
	MIGAlso     []Owner `json:"migAlso,omitempty"`     // beside MIGOwner: two that partition the same GPUs
	DynamicMIG  string  `json:"dynamicMIG,omitempty"`  // the sign that the DRA driver makes partitions for pods
	Clique      string  `json:"clique,omitempty"`      // the sign that the DRA driver labels the GPUs' clique
	GFD         string  `json:"gfd,omitempty"`         // the sign that GPU Feature Discovery labels this node
	Machine     string  `json:"machine,omitempty"`     // the firmware's name of it; "unknown" if it has none
	VGPU        *VGPU   `json:"vgpu,omitempty"`        // nil if no GPU is a virtual one

	Files   map[string][]byte `json:"-"` // those that were asked for and exist
	Private map[string]bool   `json:"-"` // those that not every user can read: no error quotes them
	NoFiles map[string]string `json:"-"` // those that are not files: "it is a folder, not a regular file"

	Instance   *instance.Instance `json:"instance,omitempty"`   // as EC2's metadata service reports
	NoInstance *trouble.Error     `json:"noInstance,omitempty"` // why the service does not
	Cluster    *instance.Cluster  `json:"cluster,omitempty"`    // of EKS: user data, a join's file, EKS's API
	NoCluster  *trouble.Error     `json:"noCluster,omitempty"`  // why it is unknown

	// DriverAgain: a driver would answer a new process; this process has loaded the library of a
	// driver that was replaced since.
	DriverAgain bool `json:"driverAgain,omitempty"`
}

// Needs says which of the costly facts are needed.
type Needs struct {
	Modules bool        // kernel modules, loaded and on disk
	Driver  bool        // what the loaded driver says about the GPUs
	Files   []string    // contents of these files; NAME/ means all files of a folder
	Engine  NamedEngine // the engine that the spec names
	Signed  string      // a branch, 580: signed modules for kernels that have none
	Symbols bool        // what target kernels export to modules

	// Cluster asks for Facts.Cluster and Facts.Instance, unless EKS's own scripts make the machine
	// a node. The file that a join has kept on this machine counts first: instance.Kept.
	Cluster *instance.ClusterRef
}

// And returns both together. Of a need that has one value, n's counts.
func (n Needs) And(o Needs) Needs {
	cluster := n.Cluster
	if cluster == nil {
		cluster = o.Cluster
	}

	return Needs{
		Modules: n.Modules || o.Modules,
		Driver:  n.Driver || o.Driver,
		Files:   slices.Concat(n.Files, o.Files),
		Engine:  cmp.Or(n.Engine, o.Engine),
		Signed:  cmp.Or(n.Signed, o.Signed),
		Symbols: n.Symbols || o.Symbols,
		Cluster: cluster,
	}
}

// Everything asks for all facts that need no further setting.
var Everything = Needs{Modules: true, Driver: true}
