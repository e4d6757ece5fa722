// SPDX-License-Identifier: Apache-2.0

// Package platform has what gpuadm knows about the systems that make a machine a node: a cloud's
// image, a Kubernetes distribution (Platform), a sealed operating system (System), a kind of node
// that its owner provides as a whole (Sealed). Each is one value, in a file named after its owner;
// no other package names one. A platform is data: it chooses what gpuadm does by the types below.
package platform

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
)

// Platform is one way in which a machine becomes a node. An empty field means that the platform
// leaves the matter to the machine's operator.
type Platform struct {
	Name  string // in facts and answers: aks
	Title string // in sentences: AKS
	Cloud string // the only cloud that has it: aws, azure, gce, oci; "" = any, or none
	Signs
	Join   Join
	Engine Engine
	Driver Driver
	// Toolkit says who brings NVIDIA's Container Toolkit; "" = nobody.
	Toolkit string
	MIG     MIG
	Plugin  Plugin
	Labels  []string // domains and keys of labels and taints that only the platform sets
	Free    []string // keys in those domains that an operator may set
	// Accelerator is the label by which cluster-autoscaler knows the cloud's nodes with GPUs, where
	// neither the platform nor the cloud sets it.
	Accelerator string
	Monitor     Monitor
	Units       []string // what its kubelet is a part of, where it starts kubelet and the engine itself
	Snap        *Snap    // the snap that has its daemons
	Limit       string   // what gpuadm cannot do there, for plan and for its page
}

// Signs identify a platform: all of Every, one of One, and the system's name. A name is a file, or
// a unit if it has no slash.
type Signs struct {
	Every, One []string
	OS         string // ID in os-release; "" = any
}

// Join says who makes the machine a node.
type Join struct {
	Method string   // of [join] in node.toml, the name of a platform; "" = none of its own
	Called []string // what people write in its place
	By     string   // what joins the machine and writes kubelet's files at each boot; "" = no program
	Own    bool     // gpuadm sets up kubelet itself on a machine of the cloud without By
	Token  string   // by which that kubelet logs in: gpuadm token prints it
	Gate   bool     // kubelet can be held back until gpuadm has prepared the machine
	Unit   string   // the unit that runs By at each boot: it reads gpuadm's settings, and starts kubelet
	First  string   // a unit without which that one never starts kubelet

	// UnitFile is the file of Unit; Settings is gpuadm's file of settings for By, and Resolved the
	// NodeConfig that By has resolved from the user data and, once it has run, from Settings.
	UnitFile string
	Settings string
	Resolved string

	Init   string   // the command that runs By, where no unit does
	Env    string   // kubelet's file of variables that By writes; a recording has its content: see Envs
	Left   bool     // By joins and owns kubelet's files, also where gpuadm has its own way
	Unseen bool     // its kubelet runs in a container, where gpuadm does not see it
	Done   string   // the file that its scripts write at their end; before that gpuadm changes nothing
	Log    string   // of those scripts
	Closed string   // why another machine cannot join; "" = it is in none of the platform's node pools
	Looked []string // what shows that: the signs that gpuadm looked for
	Try    []string // how to add a machine to the platform
	Begin  string   // what it writes, for the check before the first change
	AtBoot []string // what to do if its scripts wait at boot for gpuadm, which then cannot set up a driver
	Notes  []string // %s is the sign
	Sealed []string // the notes on a sealed system; nil = Notes
	Taints string   // how to give it the taints, which are %s
	// Kubelet is where the platform keeps kubelet's program, if that is a place of its own.
	Kubelet string
}

// How says what stage runtime does with an engine's configuration that another program writes.
type How string

const (
	Edits  How = ""       // the file is edited, and the daemon restarted
	Entry  How = "entry"  // an entry of the owner must run a program that exists
	NoNeed How = "none"   // pods get the GPUs without a handler
	After  How = "after"  // once the owner's scripts have ended, the file is edited
	Boot   How = "boot"   // the owner writes it after gpuadm in a boot
	Render How = "render" // the owner's daemon renders it at each start
	Folder How = "folder" // the owner merges a folder of additions into it
	Rooted How = "rooted" // the owner makes it of a template: both are edited
)

// Engine says who writes the engine's configuration.
type Engine struct {
	Writer  string // its name in facts; "" = no program
	How     How
	Fixed   bool   // node.toml cannot make the file gpuadm's
	Again   string // the program that makes the file again at each boot, so that gpuadm must not own it
	Handler string // its own handler, if it has one with another name than nvidia
	Made    string // of what its writer makes it, where How does not say it
	// Template is the file of which the owner makes the configuration.
	Template string
}

// Driver has the signs of a driver that the platform brings.
type Driver struct {
	Title      string // "the EKS image"; "" = the platform brings none
	Files      []string
	Unpackaged bool     // a driver that no package installed is the platform's
	Loaders    []string // units that load the driver at each boot, and that no package of NVIDIA's has
	Installer  string   // the folder into which it has NVIDIA's installer write
	Not        string   // where it brings none
	TakeOver   string   // how an operator makes gpuadm manage the driver
}

// MIG says how the platform partitions GPUs.
type MIG struct {
	Who   string // who does; "" = nobody
	Unit  bool   // an enabled unit does it
	Label string // kubelet's label of nodes whose GPUs it partitions
	File  string // the file that its partitioner reads
	Key   string // what that file has then
	Ends  string // how that is ended
}

// Plugin says how the platform offers GPUs to kubelet.
type Plugin struct {
	Who   string   // whose it is; "" = the platform brings none
	Units []string // that run it, where no pod does
	Ends  string   // how that is ended

	// Program is the one that its pods run, where that is NVIDIA's.
	Program string

	// Off is kubelet's label that keeps the platform's plugin off a node; Driver says which driver
	// the plugin finds, and OffTry how a pool has the label.
	Off    string
	Driver string
	OffTry []string
}

// Monitor is the platform's agent that reports faulty hardware as a condition of the Node.
type Monitor struct {
	Condition string // which is False then
	Who       string
	Repair    string // how the node is repaired
}

// Snap says where a snap has the arguments of its daemons, and names their units.
type Snap struct {
	Args    string // the folder of the arguments; "" = the snap has none
	Engine  string // the unit of the container engine; "" = the machine's own engine runs
	Kubelet string // the unit of kubelet
}

// Of returns the platform with a name, the zero Platform if there is none.
func Of(name string) Platform {
	for _, p := range All() {
		if p.Name == name && name != "" {
			return p
		}
	}
	return Platform{}
}

// Joining lists the platforms that give their name to a method of [join]. Another platform may have
// the same method: EKS with Ubuntu has EKS's.
func Joining() []Platform {
	hasOther := func(p Platform) bool { return p.Join.Method != p.Name || p.Name == "" }
	return slices.DeleteFunc(All(), hasOther)
}

// Methods lists the methods of [join] that name a platform.
func Methods() (methods []string) {
	for _, p := range Joining() {
		methods = append(methods, p.Join.Method)
	}
	return methods
}

// MethodOn is the method of the Kubernetes of a cloud, whose name is spelled about so: aws, gcp; ""
// if no cloud with a Kubernetes of its own has such a name.
func MethodOn(cloud string) string {
	methods := map[string]string{}
	for _, p := range Joining() {
		if p.Cloud != "" {
			methods[p.Cloud] = p.Join.Method
		}
	}

	return methods[nearest.Of(cloud, slices.Sorted(maps.Keys(methods)))]
}

// Gated lists the methods of [join] with which kubelet can be held back.
func Gated() (methods []string) {
	for _, p := range Joining() {
		if p.Join.Gate {
			methods = append(methods, p.Join.Method)
		}
	}
	return methods
}

// Own lists the platforms that a machine of their cloud joins with a kubelet that gpuadm sets up.
func Own() []Platform {
	isOthers := func(p Platform) bool { return !p.Join.Own }
	return slices.DeleteFunc(Joining(), isOthers)
}

// OwnMethods lists the methods by which gpuadm itself joins a machine.
func OwnMethods() (methods []string) {
	for _, p := range Own() {
		methods = append(methods, p.Join.Method)
	}
	return methods
}

// OwnMethodIn returns the method by which gpuadm itself joins a machine of a cloud; "" if there is
// none.
func OwnMethodIn(cloud string) string {
	for _, p := range Own() {
		if p.Cloud == cloud {
			return p.Join.Method
		}
	}
	return ""
}

// AcceleratorIn returns the label Accelerator of a cloud; "" if there is none.
func AcceleratorIn(cloud string) string {
	for _, p := range All() {
		if p.Accelerator != "" && p.Cloud == cloud {
			return p.Accelerator
		}
	}
	return ""
}

// MonitorOf returns the agent that reports faulty hardware by a type of conditions, the zero
// Monitor if none does.
func MonitorOf(condition string) Monitor {
	for _, p := range All() {
		if p.Monitor.Condition == condition && condition != "" {
			return p.Monitor
		}
	}
	return Monitor{}
}

// Writes reports whether the program with this name joins machines, and so writes kubelet's and the
// engine's files at each boot.
func Writes(name string) bool { return WriterOf(name).Join.By != "" }

// WriterOf returns the platform whose program with this name writes the engine's configuration.
func WriterOf(name string) Platform {
	for _, p := range All() {
		if p.Engine.Writer == name && name != "" {
			return p
		}
	}
	return Platform{}
}

// EngineOf says who writes an engine's configuration, by the writer's name in facts. A writer whom
// no platform and no system names is another program, and has entries of its own.
func EngineOf(writer string) Engine {
	if writer == "" {
		return Engine{How: Edits}
	}
	if e := WriterOf(writer).Engine; e.Writer != "" {
		return e
	}
	if e := SystemOf(writer).Engine; e.Writer != "" {
		return e
	}
	return Engine{Writer: writer, How: Entry}
}

// Kubelets are the places where platforms keep kubelet's program.
func Kubelets() (places []string) {
	for _, p := range All() {
		if p.Join.Kubelet != "" {
			places = append(places, p.Join.Kubelet)
		}
	}
	return places
}

// Done returns the files that platforms' scripts write at their end.
func Done() []string {
	var files []string
	for _, p := range All() {
		if p.Join.Done != "" {
			files = append(files, p.Join.Done)
		}
	}

	return files
}

// Resolved returns the files of the NodeConfigs that programs which join machines have resolved.
func Resolved() []string {
	var files []string
	for _, p := range All() {
		if p.Join.Resolved != "" {
			files = append(files, p.Join.Resolved)
		}
	}

	return files
}

// ReadForJoin returns the files of the programs that join machines that a join reads.
func ReadForJoin() []string {
	var files []string
	for _, p := range All() {
		if p.Join.Settings != "" {
			files = append(files, p.Join.Resolved, p.Join.Settings, p.Join.UnitFile)
		}
	}

	return files
}

// Templates returns the files of which platforms make the engine's configuration.
func Templates() []string {
	var files []string
	for _, p := range All() {
		if p.Engine.Template != "" {
			files = append(files, p.Engine.Template)
		}
	}

	return files
}

// Detect finds the platform by its files, and says which signs it found.
func Detect(v host.View) (p Platform, why string) {
	for _, p := range All() {
		if why := p.sign(v); why != "" {
			return p, why
		}
	}
	return Platform{}, ""
}

// sign names the signs that it found, "" if a required one is missing.
func (s Signs) sign(v host.View) string {
	if s.OS != "" && s.OS != systemID(v) {
		return ""
	}
	isMissing := func(name string) bool { return !has(v, name) }
	if len(s.Every) == 0 || slices.ContainsFunc(s.Every, isMissing) {
		return ""
	}

	if len(s.One) == 0 {
		return strings.Join(s.Every, " and ")
	}
	for _, name := range s.One {
		switch {
		case !has(v, name):
		case strings.HasPrefix(name, "/"):
			return name
		default:
			return s.Every[0] + " and " + name
		}
	}

	return ""
}

// has reports whether a file exists, or a unit's file in one of systemd's folders. If gpuadm cannot
// read it, the answer is no.
func has(v host.View, name string) bool {
	folders := []string{
		"/etc/systemd/system/", "/run/systemd/system/",
		"/usr/local/lib/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/",
	}
	if strings.HasPrefix(name, "/") {
		folders = []string{""}
	}
	for _, folder := range folders {
		if _, err := v.Stat(folder + name); err == nil {
			return true
		}
	}

	return false
}
