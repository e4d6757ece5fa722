// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The types of values, in words.
const (
	TypeString     = "string"
	TypeBool       = "boolean"
	TypeInt        = "integer"
	TypeStrings    = "list of strings"
	TypeLabels     = "table of strings"
	TypeParameters = "table of strings, integers and booleans"
	TypeCounts     = "table of integers"
	TypeDevices    = `"all" or a list of integers`
)

// Key is one key of node.toml.
type Key struct {
	Section string   // "driver", "driver.repo"; "" for the top of the file. "mig.gpu" and below are arrays of tables
	Name    string   // "version"
	Type    string   // one of the Type constants
	Default string   // as written in TOML; "" where the key must be given
	Allowed []string // the only values, where they are few
	File    bool     // its value names files of the machine
	Doc     string   // one line
}

// Keys returns all keys of node.toml, section by section. Defaults, checks, suggestions and the manual are made from it.
func Keys() []Key {
	rows := table()
	keys := make([]Key, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	return keys
}

// IsSection says whether a spec can have a section of this name.
func IsSection(name string) bool {
	return slices.ContainsFunc(Keys(), func(k Key) bool { return k.Section == name })
}

// Files returns the files of the machine that a spec names: a user who can change one of them decides what root does here.
func (s Spec) Files() (names []string) {
	for _, r := range table() {
		if !r.File {
			continue
		}
		switch is := r.ref(&s).(type) {
		case *string:
			if *is != "" {
				names = append(names, *is)
			}
		case *[]string:
			names = append(names, *is...)
		}
	}
	return names
}

// A row is a key and the target of its value.
type row struct {
	Key
	ref    func(*Spec) any                       // a pointer into the Spec, for arrays of tables into the last one; nil for format
	check  func(string) (string, *trouble.Error) // for a string that is not the default; returns its canonical form
	stated func(*Spec) *bool                     // the field that records that a file states the key, if the key needs that; else nil
}

// table defines all keys. It is a function, so that no caller can change it.
func table() []row {
	rows := make([]row, 0, 80) // a few more than there are
	section := ""
	add := func(name, kind, def, doc string, ref func(*Spec) any) *row {
		rows = append(rows, row{Key: Key{Section: section, Name: name, Type: kind, Default: def, Doc: doc}, ref: ref})
		return &rows[len(rows)-1]
	}
	text := func(name, def, doc string, check func(string) (string, *trouble.Error), ref func(*Spec) any) *row {
		r := add(name, TypeString, def, doc, ref)
		r.check = check
		return r
	}
	file := func(name, doc string, ref func(*Spec) any) { text(name, `""`, doc, checkPath, ref).File = true }
	enum := func(name, doc string, ref func(*Spec) any, allowed ...string) { // the default is the first
		r := add(name, TypeString, `"`+allowed[0]+`"`, doc, ref)
		r.Allowed = allowed
	}
	repo := func(parent string, at func(*Spec) *Repo) {
		section = parent + ".repo"
		text("url", `""`, "mirror in place of the vendor's repository: http, https or file", checkRepoURL, func(s *Spec) any { return &at(s).URL })
		file("key", "absolute path of the key that signs the repository", func(s *Spec) any { return &at(s).Key })
		enum("signature", "what the key signs; packages: dnf alone; auto: as the vendor does", func(s *Spec) any { return &at(s).Signature }, "auto", "both", "metadata", "packages")
		text("fingerprint", `""`, "what the key must be, 40 or 64 hex digits, or sha256:<64 hex digits> of its file; anything else is refused", checkFingerprint, func(s *Spec) any { return &at(s).Fingerprint })
	}

	add("format", TypeInt, "", "format of the file: 1; must be in the first file", nil)

	section = "driver"
	text("version", `""`, "exact driver version, or a branch such as \"580\"", checkDriverVersion, func(s *Spec) any { return &s.Driver.Version })
	add("gpu_count", TypeInt, "0", "number of GPUs that must be on the bus; 0 takes what is found", func(s *Spec) any { return &s.Driver.GPUCount })
	enum("source", "where the driver comes from", func(s *Spec) any { return &s.Driver.Source }, "auto", "nvidia", "distro", "runfile")
	enum("modules", "which kernel modules", func(s *Spec) any { return &s.Driver.Modules }, "auto", "open", "proprietary")
	enum("build", "where the modules are built; shared: once, by gpuadm mirror; auto: shared, precompiled, dkms, as there are some", func(s *Spec) any { return &s.Driver.Build }, "auto", "shared", "precompiled", "dkms")
	enum("owner", "who looks after the driver; other: verify, never touch", func(s *Spec) any { return &s.Driver.Owner }, "auto", "gpuadm", "other")
	add("persistenced", TypeBool, "true", "run nvidia-persistenced", func(s *Spec) any { return &s.Driver.Persistenced })
	enum("fabricmanager", "run the fabric manager; auto: where there are NVSwitches", func(s *Spec) any { return &s.Driver.FabricManager }, "auto", "on", "off")
	enum("imex", "who runs IMEX on GB200 and GB300; auto: ComputeDomains, and the host's unit is masked; host: that unit; off: it is not touched", func(s *Spec) any { return &s.Driver.IMEX }, "auto", "host", "off")
	add("imex_nodes", TypeStrings, "[]", "nodes of the host's IMEX domain, this one too, the same list on each; empty: the nodes file that is there", func(s *Spec) any { return &s.Driver.IMEXNodes }).check = checkPeer
	add("peermem", TypeBool, "false", "load nvidia-peermem: network cards read and write the GPUs' memory", func(s *Spec) any { return &s.Driver.Peermem })
	add("gds", TypeBool, "false", "install and load nvidia-fs: GPUDirect Storage", func(s *Spec) any { return &s.Driver.GDS })
	add("packages", TypeStrings, "[]", "packages to install with the driver; parts of the driver come in its version", func(s *Spec) any { return &s.Driver.Packages }).check = checkPackage
	add("without", TypeStrings, "[]", "packages that gpuadm would ask for and that are to be left out", func(s *Spec) any { return &s.Driver.Without }).check = checkPackage
	add("parameters", TypeParameters, "{}", "parameters of the module nvidia; an empty value removes one of an earlier file", func(s *Spec) any { return &s.Driver.Parameters })
	add("trust_version", TypeBool, "false", "install the version even where it is known not to serve this kind of machine, as 595 on AWS's P6e", func(s *Spec) any { return &s.Driver.TrustVersion })
	repo("driver", func(s *Spec) *Repo { return &s.Driver.Repo })
	add("enable_needed", TypeBool, "false", "enable what the driver's packages depend on, such as EPEL and CRB; it needs no url", func(s *Spec) any { return &s.Driver.Repo.EnableNeeded })
	section = "driver.runfile"
	text("url", `""`, "NVIDIA's installer for source = \"runfile\": http, https, file or an absolute path; empty: NVIDIA's own", checkFileURL, func(s *Spec) any { return &s.Driver.Runfile.URL })
	text("sha256", `""`, "what sha256sum must say of it, 64 hex digits; needed with source = \"runfile\"", checkDigest, func(s *Spec) any { return &s.Driver.Runfile.SHA256 })
	section = "driver.grid"
	add("feature_type", TypeInt, "0", "what is licensed: 1 vGPU, 2 RTX workstation, 4 compute server; 0: as gridd.conf says", func(s *Spec) any { return &s.Driver.Grid.FeatureType })
	file("token_file", "NAME.tok of NVIDIA's License System, alone in its folder; empty: none, as on AWS and Azure", func(s *Spec) any { return &s.Driver.Grid.TokenFile })

	section = "toolkit"
	text("version", `""`, "exact version of the container toolkit, or a branch such as \"1.18\"", checkToolkitVersion, func(s *Spec) any { return &s.Toolkit.Version })
	add("accept_envvar_unprivileged", TypeBool, "true", "false: a pod gets GPUs from the device plugin alone, not by an environment variable of its image; the plugin then needs volume mounts or CDI. true: the toolkit's configuration stays", func(s *Spec) any { return &s.Toolkit.AcceptEnvvarUnprivileged })
	runtimes := add("runtimes", TypeStrings, "[]", "absolute paths of what nvidia-container-runtime runs, the first that is there, such as CRI-O's /usr/libexec/crio/crun; empty: runc or crun on its PATH", func(s *Spec) any { return &s.Toolkit.Runtimes })
	runtimes.check, runtimes.File = checkPath, true
	repo("toolkit", func(s *Spec) *Repo { return &s.Toolkit.Repo })

	section = "runtime"
	enum("engine", "the container engine", func(s *Spec) any { return &s.Runtime.Engine }, "auto", "containerd", "crio", "docker")
	enum("owner", "who manages the engine's config; other: gpuadm does not edit it, and says what its owner must set", func(s *Spec) any { return &s.Runtime.Owner }, "auto", "gpuadm", "other")
	file("config", "absolute path of the config of the engine that kubelet uses, whatever gpuadm finds; empty: the engine's own", func(s *Spec) any { return &s.Runtime.Config })
	file("engine_binary", "absolute path of the program that reads config, where gpuadm cannot find it", func(s *Spec) any { return &s.Runtime.EngineBinary })
	text("handler", `"auto"`, "name of the runtime handler; auto: the handler of the config's owner, else nvidia", checkHandler, func(s *Spec) any { return &s.Runtime.Handler })
	enum("inject", "how containers get GPUs. handler: by the NVIDIA runtime. cdi: a device plugin, the DRA driver or the GPU Operator's NRI plugin names CDI devices; no handler is configured, the engine's configuration stays, and CDI must be on in it", func(s *Spec) any { return &s.Runtime.Inject }, "handler", "cdi")
	add("set_as_default", TypeBool, "false", "make the handler the engine's default", func(s *Spec) any { return &s.Runtime.SetAsDefault })
	add("cdi", TypeBool, "true", "offer the GPUs by the Container Device Interface; written out, it overrides a config that says no", func(s *Spec) any { return &s.Runtime.CDI }).
		stated = func(s *Spec) *bool { return &s.Runtime.CDIStated }

	section = "mig"
	text("layout", `""`, "name of a layout in file; empty: its only one; or write [[mig.gpu]] tables", checkName, func(s *Spec) any { return &s.MIG.Layout })
	file("file", "absolute path of a file in mig-parted's format", func(s *Spec) any { return &s.MIG.File })
	enum("failure", "one GPU that is busy or gone keeps the others from a change (all-or-nothing), or waits alone (per-gpu); auto: per-gpu at boot; the node is not ready either way", func(s *Spec) any { return &s.MIG.Failure }, "auto", "all-or-nothing", "per-gpu")
	add("trust_driver", TypeBool, "false", "true: while no driver answers, a layout that the known GPUs cannot have is not refused: a newer driver may know more", func(s *Spec) any { return &s.MIG.TrustDriver })
	add("follow_label", TypeBool, "false", "true: the node's label nvidia.com/mig.config names the layout, as with the GPU Operator's MIG manager, and nvidia.com/mig.config.state says pending, rebooting, success or failed. The DaemonSet applies a changed label within 30 s", func(s *Spec) any { return &s.MIG.FollowLabel })
	section = "mig.gpu"
	last := func(s *Spec) *MIGGPU { return &s.MIG.GPU[len(s.MIG.GPU)-1] }
	add("match", TypeStrings, "[]", "PCI device ids, names, UUIDs or PCI addresses of the GPUs meant; empty: all", func(s *Spec) any { return &last(s).Match }).check = checkName
	add("devices", TypeDevices, `"all"`, "which GPUs, by index", func(s *Spec) any { return &last(s).Devices })
	add("enabled", TypeBool, "true", "MIG mode", func(s *Spec) any { return &last(s).Enabled })
	add("layout", TypeCounts, "{}", "how many of each profile on each GPU", func(s *Spec) any { return &last(s).Layout }).check = checkProfile
	section = "mig.gpu.placements"
	spot := func(s *Spec) *Placement { return &last(s).Placements[len(last(s).Placements)-1] }
	text("profile", "", "profile of the partition", checkProfile, func(s *Spec) any { return &spot(s).Profile })
	add("start", TypeInt, "", "first memory slice of the partition, from 0", func(s *Spec) any { return &spot(s).Start })

	section = "sharing"
	enum("strategy", "how the device plugin offers MIG partitions. gpuadm manifest device-plugin prints the plugin's configuration; labels and counts go by it", func(s *Spec) any { return &s.Sharing.Strategy }, "none", "single", "mixed")
	add("time_slicing", TypeInt, "0", "how many pods share a GPU in turns; 0: none", func(s *Spec) any { return &s.Sharing.TimeSlicing })
	add("mps", TypeInt, "0", "how many pods share a GPU by CUDA MPS, each with its part of the memory; 0: none; not with MIG", func(s *Spec) any { return &s.Sharing.MPS })

	section = "node"
	add("labels", TypeLabels, "{}", "labels of the node, also with an empty value; \"KEY-\" = \"\" removes one of an earlier file", func(s *Spec) any { return &s.Node.Labels })
	add("taints", TypeStrings, "[]", "taints \"key=value:Effect\"; \"key-\" or \"key:Effect-\" removes those of an earlier file", func(s *Spec) any { return &s.Node.Taints })
	text("startup_taint", `"auto"`, "auto, none, or the taint that keeps pods away until the node is ready", checkStartupTaint, func(s *Spec) any { return &s.Node.StartupTaint })
	add("gpu_labels", TypeBool, "true", "write GPU Feature Discovery's labels", func(s *Spec) any { return &s.Node.GPULabels })
	file("kubeconfig", "absolute path of a ServiceAccount's kubeconfig, for what kubelet may not do", func(s *Spec) any { return &s.Node.Kubeconfig })
	add("wait_for_allocatable", TypeBool, "false", "ready means that kubelet offers the GPUs too, by a device plugin or DRA driver", func(s *Spec) any { return &s.Node.WaitForAllocatable })

	section = "join"
	enum("method", "how the node joins its cluster", func(s *Spec) any { return &s.Join.Method }, "none", "auto", "eks", "gke", "aks")
	text("cluster", `""`, "name of the cluster, for eks; empty: as the user data says", checkCluster, func(s *Spec) any { return &s.Join.Cluster })
	text("region", `""`, "region of the cluster, for eks; empty: the machine's own", checkRegion, func(s *Spec) any { return &s.Join.Region })
	text("server", `""`, "https URL of the API server, for eks; empty: found automatically", checkServer, func(s *Spec) any { return &s.Join.Server })
	file("ca_file", "absolute path of the cluster's CA certificate, for eks; empty: found automatically", func(s *Spec) any { return &s.Join.CAFile })
	text("service_cidr", `""`, "network of the cluster's services, for eks; empty: found automatically", checkNetwork, func(s *Spec) any { return &s.Join.ServiceCIDR })
	add("cluster_dns", TypeStrings, "[]", "addresses of the cluster's DNS, for eks; empty: as the cluster says", func(s *Spec) any { return &s.Join.ClusterDNS }).check = checkAddress
	text("node_name", `""`, "name of the node; empty: the host's, or as the cloud names it", checkNodeName, func(s *Spec) any { return &s.Join.NodeName })
	file("kubelet_config", "absolute path of a kubelet config that is merged last", func(s *Spec) any { return &s.Join.KubeletConfig })
	enum("gate", "closed: a node whose GPUs are not ready does not join; open: it joins with a taint", func(s *Spec) any { return &s.Join.Gate }, "closed", "open")

	section = "proxy"
	text("http", `""`, "proxy for http", checkProxy, func(s *Spec) any { return &s.Proxy.HTTP })
	text("https", `""`, "proxy for https", checkProxy, func(s *Spec) any { return &s.Proxy.HTTPS })
	add("no_proxy", TypeStrings, "[]", "hosts, domains and networks that are reached directly", func(s *Spec) any { return &s.Proxy.NoProxy }).check = checkNoProxy
	file("ca_file", "absolute path of further CA certificates", func(s *Spec) any { return &s.Proxy.CAFile })

	section = "disruption"
	enum("policy", "a change that takes the GPUs from their users: idle: it waits until nothing uses them. drain: it cordons the node and evicts the pods that use them, as far as their PodDisruptionBudgets let it. never: it is refused", func(s *Spec) any { return &s.Disruption.Policy }, "idle", "drain", "never")
	text("drain_deadline", `"10m"`, "how long policy = \"drain\" waits for the pods to go; then the node is uncordoned, and nothing was changed", checkDuration, func(s *Spec) any { return &s.Disruption.DrainDeadline })
	add("allow", TypeStrings, "[]", "what may be interrupted without asking", func(s *Spec) any { return &s.Disruption.Allow }).
		Allowed = []string{"restart-runtime", "stop-containers", "stop-clients", "lose-partitions", "reset-gpu", "reboot", "downgrade-gpuadm", "change-held"}

	return rows
}

// wrong returns a fault of a value, without a place, and its fix.
func wrong(fix, format string, args ...any) *trouble.Error {
	return &trouble.Error{What: fmt.Sprintf(format, args...), Try: []string{fix}}
}

// show quotes a text of a file for a message: without control characters, and shortened.
func show(text string) string {
	return strconv.Quote(clip(text))
}

func clip(text string) string {
	const most = 64
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// a returns a type with its article.
func a(kind string) string {
	switch kind {
	case TypeInt:
		return "an " + kind
	case TypeDevices:
		return kind
	}
	return "a " + kind
}

// choice is `one of "a", "b", "c"`.
func choice(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return "one of " + strings.Join(quoted, ", ")
}

func header(section string) string {
	switch section {
	case "":
		return "at the top of the file"
	case "mig.gpu", "mig.gpu.placements":
		return "[[" + section + "]]"
	}
	return "[" + section + "]"
}

// About returns the purpose of a section of node.toml, in one line; "" for the top of the file.
func About(section string) string {
	return map[string]string{
		"driver":             "the NVIDIA driver: its version, its source, its kernel modules and daemons",
		"driver.repo":        "the repository of the driver's packages, in place of NVIDIA's",
		"driver.runfile":     "NVIDIA's installer, for source = \"runfile\"",
		"driver.grid":        "the licence of a guest of NVIDIA vGPU",
		"toolkit":            "the NVIDIA Container Toolkit and its configuration",
		"toolkit.repo":       "the repository of the toolkit's packages, in place of NVIDIA's",
		"runtime":            "how the container engine runs containers with GPUs",
		"mig":                "MIG partitions",
		"mig.gpu":            "the partitions of some GPUs",
		"mig.gpu.placements": "a partition at a given place",
		"sharing":            "how containers share a GPU, for the device plugin",
		"node":               "what the node tells Kubernetes about itself",
		"join":               "how the node joins its cluster; without this section another program does that",
		"proxy":              "proxies, and further CA certificates",
		"disruption":         "what gpuadm may do while pods use the GPUs",
	}[section]
}
