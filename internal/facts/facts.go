// SPDX-License-Identifier: Apache-2.0

// Package facts finds out what machine this is: its OS, kernel, PCI devices, container engines and
// kubelet.
//
// Facts are data: stages compute their wants from them, and tests and bug reports contain them.
package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/pci"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Facts is what a machine is, beside what we want of it.
type Facts struct {
	Live    bool     `json:"live"`            // gathered from the running machine, not from a root folder
	Baked   bool     `json:"baked,omitempty"` // a root folder in which the machine's own programs run
	Image   *Trust   `json:"-"`               // of the machines that an image is baked for, where they boot with Secure Boot; else nil
	Day     string   `json:"-"`               // by the clock of the machine that gathers, in UTC: 2026-11-22; it may be wrong
	OS      OS       `json:"os"`
	Arch    string   `json:"arch"` // amd64, arm64: of the machine's own files, not of this binary
	Kernel  Kernel   `json:"kernel"`
	GPUs    []PCI    `json:"gpus"`           // every PCI function of vendor 10de, NVSwitches and audio functions included; nil where there is no PCI bus to read
	RDMA    bool     `json:"rdma,omitempty"` // a network card behind PCIe that reads and writes GPUs' memory: ConnectX, BlueField, EFA
	Engines []Engine `json:"engines"`
	Kubelet Kubelet  `json:"kubelet"`

	// Programs are the NVIDIA runtimes that are there and can be run: absolute paths, or names as a
	// handler states them.
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
	Signed      []string          `json:"signed,omitempty"`
	Shared      []SharedModules   `json:"-"` // for target kernels, of the folder that Needs names; nil where there is no such folder
	Modules     *Modules          `json:"modules,omitempty"`
	Driver      *host.Driver      `json:"driver,omitempty"`      // as the loaded driver says; nil where none answers
	NoDriver    string            `json:"noDriver,omitempty"`    // why none answers
	NVMLSays    string            `json:"-"`                     // NVML's name of that: host.NoDriver.Code
	DriverOwner *Owner            `json:"driverOwner,omitempty"` // who else manages the driver; nil where no other owner is found
	MIGOwner    *Owner            `json:"migOwner,omitempty"`    // who else partitions the GPUs
	DynamicMIG  string            `json:"dynamicMIG,omitempty"`  // the sign by which the DRA driver is seen to make partitions as pods ask for them
	GFD         string            `json:"gfd,omitempty"`         // the sign by which GPU Feature Discovery is seen to label this node
	Machine     string            `json:"machine,omitempty"`     // the firmware's name of it; "unknown" where it has none
	VGPU        *VGPU             `json:"vgpu,omitempty"`        // nil where no GPU is a virtual one
	Files       map[string][]byte `json:"-"`                     // those asked for that are there
	Private     map[string]bool   `json:"-"`                     // those of them that not every user can read: no error quotes them

	Instance   *instance.Instance `json:"instance,omitempty"`   // as EC2's metadata service says, where it was asked and answers
	NoInstance *trouble.Error     `json:"noInstance,omitempty"` // why none answers
	Cluster    *instance.Cluster  `json:"cluster,omitempty"`    // EKS: from the user data, from what was kept, or as EKS says
	NoCluster  *trouble.Error     `json:"noCluster,omitempty"`  // why it could not be found out

	// DriverAgain: a driver would answer a new process; this process has loaded the library of a
	// driver that was replaced since.
	DriverAgain bool `json:"driverAgain,omitempty"`
}

// Needs says which facts are needed beside those that cost little.
type Needs struct {
	Modules bool     // kernel modules, loaded and on disk
	Driver  bool     // what the loaded driver says about the GPUs
	Files   []string // contents of these files; of a name that ends in a slash, of all files of that folder
	Engine  Stated   // the engine that the spec names
	Signed  string   // a driver branch, 580: for which kernels its signed modules are available, as far as they have none
	Shared  string   // the file that lists the modules of a mirror: SharedModules

	Cluster *instance.ClusterRef // what a node must know of this EKS cluster, and Instance, where no scripts of EKS make the machine a node; from Kept, where that is this machine's
}

// And returns both together.
func (n Needs) And(o Needs) Needs {
	cluster := n.Cluster
	if cluster == nil {
		cluster = o.Cluster
	}
	return Needs{
		Modules: n.Modules || o.Modules, Driver: n.Driver || o.Driver, Files: slices.Concat(n.Files, o.Files),
		Engine: cmp.Or(n.Engine, o.Engine), Signed: cmp.Or(n.Signed, o.Signed), Shared: cmp.Or(n.Shared, o.Shared), Cluster: cluster,
	}
}

// Everything asks for all facts that need no further setting.
var Everything = Needs{Modules: true, Driver: true}

// OS is what os-release says.
type OS struct {
	ID      string   `json:"id"`             // debian, ubuntu, rhel, amzn, …
	Version string   `json:"version"`        // VERSION_ID: 12, 24.04, 9.5
	Like    []string `json:"like,omitempty"` // ID_LIKE
	Name    string   `json:"name"`           // PRETTY_NAME
}

// Kernel separates the kernel that runs from those that need modules.
type Kernel struct {
	Running   string   `json:"running,omitempty"` // "" in a root folder
	Installed []string `json:"installed"`         // the folders of /lib/modules, newest first
}

// Targets lists the kernels that need modules: the running kernel, and the newer ones, which may be
// booted next. Which one a root folder will boot is unknown, so there it is all of them.
func (k Kernel) Targets(live bool) []string {
	if !live {
		return slices.Clone(k.Installed)
	}
	if i := slices.Index(k.Installed, k.Running); i >= 0 {
		return slices.Clone(k.Installed[:i+1])
	}
	if len(k.Installed) > 0 {
		return slices.Clone(k.Installed[:1]) // a container, or the running kernel's package was removed
	}
	if k.Running != "" {
		return []string{k.Running}
	}
	return nil
}

// Fallback is the newest installed kernel that is older than the running one, which the boot menu
// has, too; "" where there is none.
func (k Kernel) Fallback() string {
	if i := slices.Index(k.Installed, k.Running) + 1; i > 0 && i < len(k.Installed) {
		return k.Installed[i]
	}
	return ""
}

// Newer says whether a kernel's release is newer than the running kernel's.
func (k Kernel) Newer(release string) bool { return newer(release, k.Running) > 0 }

// PCI is one PCI function.
type PCI = pci.Function

// Engine is one container engine found on the machine.
type Engine struct {
	Name    string `json:"name"`              // containerd, crio, docker
	Version string `json:"version,omitempty"` // the project's own: 1.7.24, 2.0.0-rc.1; "" if it could not be found out
	Binary  string `json:"binary"`            // /usr/bin/containerd; with Unit "" as well there is only a config file
	Socket  string `json:"socket,omitempty"`  // /run/containerd/containerd.sock
	CRI     string `json:"cri,omitempty"`     // Docker's: the socket of cri-dockerd, by which a kubelet uses it; "" without one
	Unit    string `json:"unit,omitempty"`    // containerd.service
	Config  string `json:"config"`            // /etc/containerd/config.toml, there or not
	Folder  string `json:"folder,omitempty"`  // of CRI-O's drop-ins: /etc/crio/crio.conf.d, there or not; of what k0s adds to the config that it makes
	Wrapper string `json:"wrapper,omitempty"` // what hides the engine's options: the program by which the unit starts it, or a relative name
	Owner   string `json:"owner,omitempty"`   // who rewrites the config file: nodeadm, aks, gke, k3s, rke2, …; "" = no owner
	Why     string `json:"why,omitempty"`     // by which sign the owner was recognised
	Files   []File `json:"files,omitempty"`   // the config file and what it imports, in the order the engine reads them

	Args    []string `json:"-"` // its command line; nil where unknown
	Started []string `json:"-"` // the files that it is from: environment files, then those of the unit, which win

	Expands []string `json:"-"` // pairs for strings.NewReplacer: what MicroK8s puts in place of variables in the template that is Config

	Texts *toml.Texts `json:"-"` // the files, parsed
}

// File is a config file's bytes. They are not printed: such files may hold passwords.
type File struct {
	Path string `json:"path"`
	Data []byte `json:"-"` // nil: not there
}

// String says what machine this is in one line, leaving out what is unknown:
// ubuntu 24.04 · kernel 6.8.0-1021-aws · 8 × H100 80GB · containerd 1.7.24
func (f Facts) String() string {
	var parts []string
	if os := strings.TrimSpace(f.OS.ID + " " + f.OS.Version); os != "" {
		parts = append(parts, os)
	}
	switch {
	case f.Kernel.Running != "":
		parts = append(parts, "kernel "+f.Kernel.Running)
	case len(f.Kernel.Installed) > 0 && !f.Live:
		parts = append(parts, "kernel "+f.Kernel.Installed[0])
	}
	if g := gpus(f.GPUs); g != "" {
		parts = append(parts, g)
	} else if f.Live {
		parts = append(parts, "no NVIDIA GPU")
	}
	for _, e := range f.Engines {
		s := e.Name
		if e.Version != "" {
			s += " " + e.Version
		}
		if e.Owner != "" {
			s += " (" + e.Owner + ")"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " · ")
}

// gpus counts the GPUs by model, in the order in which models first come on the bus.
func gpus(all []PCI) string {
	var order []string
	count := map[string]int{}
	for _, p := range all {
		if !p.Display() {
			continue
		}
		name := p.Model
		if name == "" {
			name = "NVIDIA GPU " + p.Device
		}
		if count[name] == 0 {
			order = append(order, name)
		}
		count[name]++
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", count[name], name)
	}
	return strings.Join(order, " + ")
}

// Words splits a line at blanks as systemd does: 'x y' and "x y" are one word, backslash escapes
// are C's, %% is %. An open quote ends with the line. Source: "Quoting" in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html
func Words(line string) []string {
	var out []string
	var b strings.Builder
	var quote byte
	in := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			in = true
			i += unescape(&b, line[i:])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, in = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if in {
				out = append(out, b.String())
				b.Reset()
				in = false
			}
		case c == '%' && i+1 < len(line) && line[i+1] == '%':
			in = true
			b.WriteByte('%')
			i++
		default:
			in = true
			b.WriteByte(c)
		}
	}
	if in {
		out = append(out, b.String())
	}
	return out
}

// unescape writes what the escape at the text's start means and returns how many bytes follow its
// backslash. Go's escapes are C's, but for systemd's own \\s; what neither knows is taken
// literally.
func unescape(b *strings.Builder, s string) int {
	r, wide, tail, err := strconv.UnquoteChar(s, 0)
	switch {
	case s[1] == 's':
		b.WriteByte(' ')
	case err != nil || r == 0:
		b.WriteByte(s[1])
	case wide:
		b.WriteRune(r)
		return len(s) - len(tail) - 1
	default:
		b.WriteByte(byte(r))
		return len(s) - len(tail) - 1
	}
	return 1
}

// option returns the value of the last of the command line's options with one of the names (given
// without dashes), written --name value, --name=value or with one dash; "" if there is none.
func option(argv []string, names ...string) string {
	values := Options(argv, names...)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// Options returns all such values, in order.
func Options(argv []string, names ...string) []string {
	var values []string
	for i := 1; i < len(argv); i++ {
		a, ok := strings.CutPrefix(argv[i], "-")
		if !ok {
			continue
		}
		a = strings.TrimPrefix(a, "-")
		for _, name := range names {
			if rest, ok := strings.CutPrefix(a, name+"="); ok {
				values = append(values, rest)
			} else if a == name && i+1 < len(argv) {
				i++
				values = append(values, argv[i])
				break
			}
		}
	}
	return values
}
