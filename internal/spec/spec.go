// SPDX-License-Identifier: Apache-2.0

// Package spec reads node.toml, the one file with the desired state of a node.
//
// It is strict: it refuses everything that it does not know, and reports the place and the fix. It
// is pure: Parse gets bytes and opens no file, so a spec can be checked anywhere.
package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Spec is the desired state of a node: all files merged, where later files override earlier ones,
// with the defaults of Keys for missing keys. An absent section has its defaults too; Has
// distinguishes the two.
type Spec struct {
	Driver     Driver
	Toolkit    Toolkit
	Runtime    Runtime
	MIG        MIG
	Sharing    Sharing
	Node       Node
	Join       Join
	Proxy      Proxy
	Disruption Disruption

	// Sections are the sections that the files have, in the order of Keys. The stage of another
	// section changes nothing.
	Sections []string
}

// Has says whether any file has a section: "driver", "runtime", "mig", …
// A repository or table inside a section counts if it is not empty: "driver.repo", "mig.gpu".
func (s Spec) Has(section string) bool {
	switch section {
	case "driver.repo":
		return s.Driver.Repo.URL != "" || s.Driver.Repo.EnableNeeded
	case "driver.runfile":
		return s.Driver.Runfile.SHA256 != ""
	case "driver.grid":
		return s.Driver.Grid != Grid{}
	case "toolkit.repo":
		return s.Toolkit.Repo.URL != ""
	case "mig.gpu":
		return len(s.MIG.GPU) > 0
	}
	return slices.Contains(s.Sections, section)
}

// Digest identifies a spec's meaning by 12 hex digits, independent of comments, order and the
// division into files.
func (s Spec) Digest() string {
	text, _ := json.Marshal(s) // strings, numbers, lists and maps with sorted keys: it cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:12]
}

// Asked says whether the spec asks for partitions.
func (m MIG) Asked() bool { return m.Layout != "" || m.File != "" || len(m.GPU) > 0 }

// Driver is [driver]: the NVIDIA driver, its source and its owner.
type Driver struct {
	Version       string            // "580.95.05", or a branch "580"; "" where no version is given
	GPUCount      int               // GPUs that must be on the bus; 0 = as found
	Source        string            // auto, nvidia, distro, runfile
	Modules       string            // auto, open, proprietary
	Build         string            // auto, shared, precompiled, dkms
	Owner         string            // auto, gpuadm, other
	Persistenced  bool              // run nvidia-persistenced
	FabricManager string            // auto, on, off
	IMEX          string            // auto, host, off
	IMEXNodes     []string          // the nodes of the host's IMEX domain, as written: one list for all nodes
	Peermem       bool              // load nvidia-peermem, a module of the driver's own
	GDS           bool              // install and load nvidia-fs, for GPUDirect Storage
	Packages      []string          // to install with the driver
	Without       []string          // packages of the catalog to leave out
	TrustVersion  bool              `json:",omitempty"` // install a version that is known not to work here
	Parameters    map[string]string // of the module nvidia, as modprobe.d takes them: true is "1", false "0"
	Repo          Repo
	Runfile       Runfile
	Grid          Grid `json:",omitzero"`
}

// Grid is [driver.grid]: the licence of a guest of NVIDIA vGPU.
type Grid struct {
	FeatureType int    // nvidia-gridd's number; 0 = as its configuration says
	TokenFile   string // absolute path, NAME.tok; "" = none: some clouds' drivers include the licence
}

// Runfile is [driver.runfile]: NVIDIA's installer. With source = "runfile" SHA256 is set.
type Runfile struct {
	URL    string // http, https or file, without a password; "" = NVIDIA's own for the version
	SHA256 string // 64 lower-case hex digits
}

// Repo is [driver.repo] or [toolkit.repo]: a mirror in place of the vendor's repository. URL is ""
// if there is none; otherwise all three are set.
type Repo struct {
	URL string // http, https or file, without a password
	Key string // absolute path of the public key
	// Fingerprint is the key's: 40 or 64 upper-case hex digits; or "sha256:" and the 64 lower-case
	// ones of its file.
	Fingerprint string
	Signature   string // auto, both, metadata, packages: what the key signs

	EnableNeeded bool // only in [driver.repo]: enable the repositories that the driver's packages depend on
}

// Toolkit is [toolkit]: the NVIDIA container toolkit.
type Toolkit struct {
	Version string // "1.18.0", or a branch "1.18"; "" = the newest
	Repo    Repo

	// AcceptEnvvarUnprivileged false: NVIDIA_VISIBLE_DEVICES of an unprivileged pod has no effect.
	// True: not touched.
	AcceptEnvvarUnprivileged bool
	Runtimes                 []string // absolute paths; empty = not touched
}

// Runtime is [runtime]: the container engine and how it finds the GPUs.
type Runtime struct {
	Engine       string // auto, containerd, crio, docker
	Owner        string // auto, gpuadm, other
	Config       string // absolute path; "" = the engine's own
	EngineBinary string `json:",omitempty"` // absolute path of what reads Config, if gpuadm cannot find it
	Handler      string // also the RuntimeClass's name; auto = the owner's, else nvidia
	Program      string `json:",omitempty"` // absolute path of what the handler runs; "" = by its name
	Inject       string // handler, cdi: how containers get GPUs; cdi leaves the engine's configuration alone
	SetAsDefault bool   // make the handler the engine's default
	CDI          bool   // write CDI specs and let the engine use them
	CDIStated    bool   `json:",omitempty"` // a file states cdi, which then overrides the engine's config
}

// MIG is [mig]: how the GPUs are partitioned. Either Layout or GPU is set, or neither.
type MIG struct {
	Layout string // a name from File; "" with a File and no GPU: its only layout
	File   string // absolute path of a file in mig-parted's format
	GPU    []MIGGPU

	Failure     string   // auto, all-or-nothing, per-gpu: whether one GPU that cannot change stops the others
	TrustDriver bool     // the driver decides about layouts that the table of known GPUs excludes
	Stop        []string `json:",omitempty"` // units that pause while partitions change
	FollowLabel bool     `json:",omitempty"` // the node's label names Layout, which is "" until then
}

// MIGGPU is one [[mig.gpu]]: the partitions of some of the GPUs.
type MIGGPU struct {
	Match      []string       // PCI device ids, names, UUIDs or PCI addresses of GPUs; empty = all
	Devices    Devices        // which of them
	Enabled    bool           // MIG mode; when false, Layout and Placements are empty
	Layout     map[string]int // profile -> how many of it on each GPU
	Placements []Placement    // their positions; empty = wherever they fit
}

// Devices picks GPUs by index, in the order of their PCI addresses.
type Devices struct {
	All   bool
	Index []int // when not All: ascending, each once
}

// Placement is one partition at a given position.
type Placement struct {
	Profile string
	Start   int // first memory slice, from 0
}

// Sharing is [sharing]: the device plugin's configuration.
type Sharing struct {
	Strategy    string // auto, none, single, mixed: Spec.Strategy decides auto
	TimeSlicing int    // replicas of each GPU and each partition: 0 (off), or 2 and more
	MPS         int    // the same, by CUDA MPS; one of the two is 0
}

// Replicas returns the number of pods that share a GPU, 1 if none do.
func (s Sharing) Replicas() int { return max(1, s.TimeSlicing, s.MPS) }

// Node is [node]: the node's labels, taints and readiness in Kubernetes.
type Node struct {
	Labels             map[string]string // values may be empty
	Taints             []Taint           // sorted by key, then effect; each pair once
	StartupTaint       string            // auto, none, or a taint
	GPULabels          bool              // GPU Feature Discovery's labels
	Kubeconfig         string            // absolute path; "" = the kubelet's own identity
	WaitForAllocatable bool              // ready requires that kubelet offers the GPUs, too
}

// Taint is one taint of a node.
type Taint struct {
	Key, Value string
	Effect     string // NoSchedule, PreferNoSchedule, NoExecute
}

// String returns the taint as kubectl and kubelet write it: "key=value:Effect", or "key:Effect"
// without a value.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Join is [join]: how the node joins its cluster.
type Join struct {
	Method        string   // none, auto, or a platform of internal/platform: eks
	Cluster       string   // the cluster's name, for EKS; "" = as the machine's user data says
	Region        string   // the cluster's region, for EKS; "" = the machine's own
	Server        string   // https URL of the API server, for EKS; "" = as EKS says
	CAFile        string   // absolute path of the cluster's CA certificate, for EKS; "" = as EKS says
	ServiceCIDR   string   // the services' network, for EKS: cluster DNS is its tenth address
	ClusterDNS    []string // addresses of the cluster's DNS; empty = as the cluster says
	NodeName      string   // "" = the host's name, or as the cloud names it
	KubeletConfig string   // absolute path of a kubelet config that is merged last
	Gate          string   // closed, open: whether a node joins before its GPUs are ready, with a taint
}

// Proxy is [proxy]: how gpuadm, and all that it configures, reach the network.
type Proxy struct {
	HTTP, HTTPS string   // URLs, without a password
	NoProxy     []string // hosts, domains and networks that are reached directly
	CAFile      string   // absolute path of further CA certificates
}

// Disruption is [disruption]: what gpuadm may interrupt without asking, and how it makes other
// changes that interrupt users.
type Disruption struct {
	Policy        string // idle, drain, never: for a change that interrupts processes on the GPUs
	DrainDeadline string // a duration, as time.ParseDuration reads it
	// Allow has, sorted, each once: restart-runtime, stop-containers, stop-clients,
	// lose-partitions, reset-gpu, reboot, downgrade-gpuadm, change-held.
	Allow []string
}
