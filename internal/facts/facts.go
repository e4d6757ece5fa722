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
//   - the driver's modules: modules.go, modules_dep.go, module_file.go, module_cache.go,
//     libraries.go, dkms.go, signed_modules.go, shared_modules.go
//   - who may sign modules: trust.go, keys.go, module_signature.go
//   - other owners of the driver and of partitions: owner.go, driver_owner.go, mig_owner.go,
//     mig_commands.go, feature_discovery.go
//   - container engines: engines.go, containerd.go, containerd_files.go, crio.go, docker.go,
//     named_engine.go, nvidia_runtimes.go, version.go
//   - kubelet: kubelet.go, kubelet_config.go, kubelet_flags.go, kubelet_credentials.go,
//     kubelet_endpoint.go, pod_resources.go
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
	Live  bool   `json:"live"`            // gathered from the running machine, not from a root folder
	Baked bool   `json:"baked,omitempty"` // a root folder in which the machine's own programs run
	Image *Trust `json:"-"`               // of the machines that an image is baked for, if they boot with Secure Boot; else nil
	Day   string `json:"-"`               // 2026-11-22, UTC, by the clock of the gathering machine, which may be wrong

	OS     OS     `json:"os"`
	Arch   string `json:"arch"` // amd64, arm64: of the machine's own files, not of this binary
	Kernel Kernel `json:"kernel"`
	GPUs   []PCI  `json:"gpus"`           // every PCI function of vendor 10de, NVSwitches and audio functions included; nil where there is no PCI bus to read
	RDMA   bool   `json:"rdma,omitempty"` // a network card behind PCIe that reads and writes GPUs' memory: ConnectX, BlueField, EFA

	Engines []Engine `json:"engines"`
	Kubelet Kubelet  `json:"kubelet"`

	// Programs are the NVIDIA runtimes that can be run: absolute paths, or names as a handler has
	// them.
	Programs []string `json:"programs,omitempty"`

	Cloud instance.Cloud `json:"cloud,omitzero"` // by the firmware and files: the network is not asked

	Hostname  string `json:"hostname,omitempty"`
	MachineID string `json:"machineID,omitempty"`
	BootID    string `json:"bootID,omitempty"`  // another one after each boot; "" in a root folder
	Booting   bool   `json:"booting,omitempty"` // gpuadm.service is at work: what is ordered after it, kubelet, cannot be started now
	Cgroup    int    `json:"cgroup,omitempty"`  // the version of cgroups: 1, 2; 0 if unknown
	CPUs      int    `json:"cpus,omitempty"`    // online ones; 0 if unknown
	Memory    uint64 `json:"memory,omitempty"`  // bytes that the kernel manages; 0 if unknown

	// The facts below cost more to find out. Needs asks for them.
	// Signed names the packages of signed modules that are available for target kernels; nil where
	// they were not asked for, or where the package lists know of none for any kernel.
	Signed []string        `json:"signed,omitempty"`
	Shared []SharedModules `json:"-"` // for target kernels, from the list that Needs names; nil if there is no such list

	Modules     *Modules     `json:"modules,omitempty"`
	Driver      *host.Driver `json:"driver,omitempty"`      // as the loaded driver says; nil where none answers
	NoDriver    string       `json:"noDriver,omitempty"`    // why none answers
	NVMLSays    string       `json:"-"`                     // NVML's name of that: host.NoDriver.Code
	DriverOwner *Owner       `json:"driverOwner,omitempty"` // who else manages the driver; nil where no other owner is found
	MIGOwner    *Owner       `json:"migOwner,omitempty"`    // who else partitions the GPUs
	DynamicMIG  string       `json:"dynamicMIG,omitempty"`  // the sign by which the DRA driver is seen to make partitions as pods ask for them
	GFD         string       `json:"gfd,omitempty"`         // the sign by which GPU Feature Discovery is seen to label this node
	Machine     string       `json:"machine,omitempty"`     // the firmware's name of it; "unknown" where it has none
	VGPU        *VGPU        `json:"vgpu,omitempty"`        // nil where no GPU is a virtual one

	Files   map[string][]byte `json:"-"` // those asked for that exist
	Private map[string]bool   `json:"-"` // those of Files that not every user can read: no error quotes them

	Instance   *instance.Instance `json:"instance,omitempty"`   // as EC2's metadata service says, where it was asked and answers
	NoInstance *trouble.Error     `json:"noInstance,omitempty"` // why none answers
	Cluster    *instance.Cluster  `json:"cluster,omitempty"`    // EKS: from the user data, from what was kept, or as EKS says
	NoCluster  *trouble.Error     `json:"noCluster,omitempty"`  // why it could not be found out

	// DriverAgain: a driver would answer a new process; this process has loaded the library of a
	// driver that was replaced since.
	DriverAgain bool `json:"driverAgain,omitempty"`
}

// Needs says which of the costly facts are needed.
type Needs struct {
	Modules bool        // kernel modules, loaded and on disk
	Driver  bool        // what the loaded driver says about the GPUs
	Files   []string    // contents of these files; a name that ends in a slash means all files of that folder
	Engine  NamedEngine // the engine that the spec names
	Signed  string      // a driver branch, 580: for which kernels without its modules signed ones are available
	Shared  string      // the file that lists the modules of a mirror: SharedModules

	// Cluster asks for Facts.Cluster and Facts.Instance, unless EKS's own scripts make the machine
	// a node. What was kept on this machine counts first: instance.Kept.
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
		Shared:  cmp.Or(n.Shared, o.Shared),
		Cluster: cluster,
	}
}

// Everything asks for all facts that need no further setting.
var Everything = Needs{Modules: true, Driver: true}
