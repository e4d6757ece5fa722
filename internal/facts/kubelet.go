// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"go.yaml.in/yaml/v3"
)

// maxParsed is the size in bytes above which a config file of kubelet's is taken for broken. Real
// ones have a few thousand.
const maxParsed = 1 << 20

// kubelet reads kubelet's unit, command line and config files.
func (l *look) kubelet(ctx context.Context, engines []Engine) Kubelet {
	s := l.service(ctx, "kubelet.service")
	if s == nil && len(l.distributions) > 0 {
		i := slices.IndexFunc(l.distributions, func(d distribution) bool { return d.kubelet.Active == "active" })
		return l.distributions[max(i, 0)].kubelet
	}
	k := Kubelet{Binary: l.first("/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet", "/home/kubernetes/bin/kubelet")}
	c := kubeletCommand{service: s}
	if s != nil {
		k.Unit, k.Active = s.name, s.active
		for _, line := range s.requires {
			k.Requires = append(k.Requires, strings.Fields(line)...)
		}
		c.environ = l.environ(s)
		if len(s.start) > 0 {
			c.argv, c.from = traced(s.start[0], func() map[string]string { return c.values })
		}
		i := slices.IndexFunc(c.argv, func(word string) bool { return path.Base(word) == "kubelet" })
		if i > 0 && !(path.IsAbs(c.argv[i]) && l.has(c.argv[i])) {
			i = -1
		}
		if i < 0 {
			c.argv, c.from = nil, nil // a wrapper's, which names no kubelet
		} else if c.argv, c.from = c.argv[i:], c.from[i:]; path.IsAbs(c.argv[0]) && l.has(c.argv[0]) {
			k.Binary = c.argv[0]
		}
	}
	argv := c.argv
	if len(argv) == 0 && l.v.Live() {
		for _, pid := range slices.DeleteFunc(l.processes("kubelet"), l.inPod) { // started by a wrapper, or of a distribution that is not known
			var unit string
			argv, unit = l.commandOf(pid)
			k.Unit, k.Active = cmp.Or(k.Unit, unit), "active"
			k.Binary, _ = l.v.Readlink("/proc/" + pid + "/exe")
			break // of two, this machine's: another runs in a container, and was started later
		}
	}
	if s == nil {
		c.argv, c.from = argv, make([]string, len(argv))
		if k.Binary == "" {
			return k
		}
	}
	k.Args, k.Dir = argv[min(1, len(argv)):], option(argv, "root-dir")
	k.Files = c.environ.files
	k.ConfigOwner = configOwner(c, engines)
	l.kubeletConfig(&k, argv)
	k.credentials(l, option(argv, "kubeconfig"))
	k.NodeName = nodeName(option(argv, "hostname-override"), l.hostname())
	k.flags(c)
	if k.Binary != "" {
		// It is not run to tell its version: that takes longer than all else here.
		k.Version = l.version(ctx, k.Binary, program{packages: []string{"kubelet"}, module: "k8s.io/kubernetes"})
	}
	return k
}

// kubeletCommand is kubelet's command line and where each of its arguments comes from.
type kubeletCommand struct {
	*service
	environ
	argv []string // nil if the unit starts something else
	from []string // the variable that each came from; "" = the unit's own text
}

// kubeletConfig reads the config file, then the drop-ins that kubelet merges over it: the folder
// that --config-dir names.
func (l *look) kubeletConfig(k *Kubelet, argv []string) {
	k.Config = option(argv, "config")
	if k.Config == "" {
		k.Config = l.first("/var/lib/kubelet/config.yaml") // kubeadm's place
	}
	if k.Config != "" {
		k.merge(File{k.Config, l.read(k.Config)})
	}
	if len(argv) > 0 && option(argv, "config") == "" {
		k.Taints, k.TaintsAt.Others = nil, nil // kubelet reads only the files that its command line names
	}
	if dir := option(argv, "config-dir"); dir != "" {
		l.mergeDir(k, dir)
	}
	// Flags win over files:
	// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
	k.CgroupDriver = cmp.Or(option(argv, "cgroup-driver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(option(argv, "container-runtime-endpoint"), k.Endpoint)
}

// configOwner says who writes the files of a kubelet that has a unit of its own.
func configOwner(c kubeletCommand, engines []Engine) string {
	for _, f := range c.environ.files {
		switch f.Path {
		case "/var/lib/kubelet/kubeadm-flags.env": // by its 10-kubeadm.conf
			return "kubeadm"
		case "/etc/eks/kubelet/environment":
			return "nodeadm"
		}
	}
	for _, e := range engines {
		if platform.Writes(e.Owner) {
			return e.Owner
		}
	}
	return ""
}

// nodeName is what kubelet calls its node: GetHostname in pkg/util/node of Kubernetes.
func nodeName(override, hostname string) string {
	return strings.ToLower(cmp.Or(strings.TrimSpace(override), hostname))
}

// mergeDir reads the drop-ins of a folder in the order of their names, those that end in .conf.
func (l *look) mergeDir(k *Kubelet, dir string) {
	for _, f := range l.walk(dir, 0) {
		if strings.HasSuffix(f, ".conf") {
			k.merge(File{f, l.read(f)})
		}
	}
}

// merge takes what a KubeletConfiguration says over what was known before, as a merge patch (RFC
// 7396): lists are replaced, null takes them away. Source: mergeKubeletConfigurations in
// cmd/kubelet/app/server.go of Kubernetes.
func (k *Kubelet) merge(f File) {
	k.Files = append(k.Files, f)
	settings := document(f.Data)
	k.CgroupDriver = cmp.Or(settings.text("cgroupDriver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(settings.text("containerRuntimeEndpoint"), k.Endpoint)
	if list, stated := settings[taintsKey]; stated {
		k.configTaints(f.Path, list)
	}
}

// taintsKey is where a KubeletConfiguration has the taints that the node registers with.
const taintsKey = "registerWithTaints"

// configTaints notes the taints that a config file names. It leaves out those that kubelet would
// refuse.
func (k *Kubelet) configTaints(file string, said any) {
	list, _ := said.([]any)
	k.Taints = nil
	for _, one := range list {
		taint, _ := one.(map[string]any)
		if t := settings(taint); t.text("key") != "" {
			k.Taints = append(k.Taints, Taint{t.text("key"), t.text("value"), t.text("effect")})
		}
	}
	if path.Base(file) != OwnConf {
		k.TaintsAt.Others = k.Taints
	}
}

// settings are what a config file says at its outermost level.
type settings map[string]any

// text is the value of a key, "" where that is no text.
func (s settings) text(key string) string {
	text, _ := s[key].(string)
	return text
}

// document reads a config file in JSON or YAML; a broken one says nothing, since kubelet refuses
// it.
func document(data []byte) settings {
	data = bytes.TrimSpace(data)
	var s map[string]any // YAML gives tables within the type of this one
	parse := yaml.Unmarshal
	if bytes.HasPrefix(data, []byte("{")) {
		parse = json.Unmarshal
	}
	if len(data) > maxParsed || parse(data, &s) != nil {
		return nil
	}
	return s
}

// Kubelet is what is known of the kubelet before and after it has joined.
type Kubelet struct {
	Binary       string   `json:"binary,omitempty"`
	Version      string   `json:"version,omitempty"`      // if it can be read; kubelet is not run to ask
	Unit         string   `json:"unit,omitempty"`         // kubelet.service; of K3s and RKE2 their own, which the kubelet is a part of
	Active       string   `json:"active,omitempty"`       // systemd's ActiveState of the unit; "" where no systemd runs
	Args         []string `json:"-"`                      // its command line, without the program
	Requires     []string `json:"requires,omitempty"`     // units whose restart restarts it
	Config       string   `json:"config,omitempty"`       // its KubeletConfiguration file
	ConfigOwner  string   `json:"configOwner,omitempty"`  // who writes its files: kubeadm (at join only), nodeadm, aks, gke, k3s, rke2, k0s, microk8s, k8s; "" = no program
	Dir          string   `json:"dir,omitempty"`          // its --root-dir, where stated; Folder has the default
	CgroupDriver string   `json:"cgroupDriver,omitempty"` // systemd, cgroupfs; "" if unknown
	Endpoint     string   `json:"endpoint,omitempty"`     // containerRuntimeEndpoint, where stated

	Kubeconfig string    `json:"kubeconfig,omitempty"` // as its command line states it
	NodeName   string    `json:"nodeName,omitempty"`   // as its command line states it, else the host's name in lower case; a cloud may give another
	Joined     bool      `json:"joined,omitempty"`     // the kubeconfig is there, and what it names as credentials too
	Begins     time.Time `json:"-"`                    // from when on its client certificate is valid
	Expired    time.Time `json:"expired,omitzero"`     // when its client certificate ends; zero if it has none
	Identity   string    `json:"-"`                    // who its client certificate is of: system:node:NAME; "" if it has none

	Labels   map[string]string `json:"labels,omitempty"` // those it registers the node with, as its command line states them
	Taints   []Taint           `json:"taints,omitempty"` // those it registers the node with
	LabelsAt Place             `json:"labelsAt,omitzero"`
	TaintsAt Place             `json:"taintsAt,omitzero"`
	Files    []File            `json:"files,omitempty"` // its unit's environment files and its config files, there or not, in the order in which they are read
}

// Folder is where it keeps its state: the sockets of DRA drivers, pods' folders; not device
// plugins', which are always in PluginSockets.
func (k Kubelet) Folder() string { return cmp.Or(k.Dir, "/var/lib/kubelet") }

// PluginSockets is where device plugins listen, wherever kubelet keeps its state. Sources:
// DevicePluginPath in k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go; kubernetes issues
// 83226 and 120626; kubernetes/website pull 55430.
const PluginSockets = "/var/lib/kubelet/device-plugins"

// Reads are the files that it reads at its start, each once.
func (k Kubelet) Reads() (names []string) {
	for _, file := range k.Files {
		if !slices.Contains(names, file.Path) {
			names = append(names, file.Path)
		}
	}
	return names
}

// Taint is one taint of a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule, NoExecute
}

// Place is where gpuadm writes its labels or taints: kubelet reads them there, and the owner of its
// other files keeps them.
type Place struct {
	// How is one of
	//   - "env": the variable Var of the file File of KEY=VALUE lines holds an administrator's flags; the file need not exist
	//   - "drop-in": gpuadm's file in the folder File, which need not exist: OwnConf, a KubeletConfiguration with the whole list
	//     under Key, or OwnSettings, of K3s and RKE2, with the Key "node-label+" that adds to the list
	//   - "": there is no such place, and Why says why
	How  string `json:"how,omitempty"`
	File string `json:"file,omitempty"`
	Var  string `json:"var,omitempty"`
	Key  string `json:"key,omitempty"`
	Why  string `json:"why,omitempty"`

	// Others are the taints that kubelet would register with if neither Var nor OwnConf named any.
	// A list replaces those before it, so what is written to the place must repeat them.
	Others []Taint `json:"-"`
}

// gpuadm's files beside an owner's: the daemons read both folders in the order of names, and the
// last file wins.
const (
	OwnConf     = "zz-gpuadm.conf" // kubelet reads only names that end in .conf
	OwnSettings = "zz-gpuadm.yaml" // K3s and RKE2 read .yaml and .yml
)

// Uses says whether kubelet's endpoint is an engine's socket. Without a stated endpoint it is
// unknown.
func (k Kubelet) Uses(e Engine) bool {
	at := socketPath(k.Endpoint)
	return at != "" && (at == socketPath(e.Socket) || at == socketPath(e.CRI))
}

// ourUnit runs apply at boot; kubelet is ordered after it.
const ourUnit = "gpuadm.service"

// node fills in what tells this machine and this boot from others.
func (l *look) node(ctx context.Context, f *Facts) {
	f.Hostname, f.MachineID = l.hostname(), l.machineID()
	if !f.Live {
		return
	}
	f.BootID, f.Booting = l.attr("/proc/sys/kernel/random/boot_id"), l.active(ctx, ourUnit) == "activating"
	f.Cgroup, f.CPUs, f.Memory = l.cgroup(), countList(l.attr("/sys/devices/system/cpu/online")), memory(l.attr("/proc/meminfo"))
}

// hostname is the running machine's name, or the one it will have. Source: hostname(5).
func (l *look) hostname() string {
	if l.v.Live() {
		if name := l.attr("/proc/sys/kernel/hostname"); name != "" {
			return name
		}
	}
	for line := range strings.SplitSeq(l.attr("/etc/hostname"), "\n") {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return line
		}
	}
	return ""
}

// machineID is 32 hex digits; "" if the machine has none yet, as an image before its first boot.
// Source: machine-id(5).
func (l *look) machineID() string {
	id := l.attr("/etc/machine-id")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// cgroup tells version 2 as kubelet does, by what is mounted on the whole: with both, it works with
// version 1.
// Source: IsCgroup2UnifiedMode in github.com/opencontainers/cgroups.
func (l *look) cgroup() int {
	if _, err := l.v.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return 2
	}
	for _, name := range [...]string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"} {
		if _, err := l.v.Stat(name); err == nil {
			return 1
		}
	}
	return 0
}

// countList counts what the kernel lists as 0-3,8,10-11; 0 if it makes no sense.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, found := strings.Cut(part, "-")
		if !found {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || b < a {
			return 0
		}
		n += int(b-a) + 1
	}
	return n
}

// memory reads the first line of /proc/meminfo, in bytes; 0 if it is not there.
func memory(meminfo string) uint64 {
	var kb uint64
	_, _ = fmt.Sscanf(meminfo, "MemTotal: %d kB", &kb)
	return kb << 10
}

// active is a unit's ActiveState; "" if it is not there or no systemd runs.
func (l *look) active(ctx context.Context, name string) string {
	if !l.unitThere(name) {
		return ""
	}
	u, err := l.v.Unit(ctx, name)
	var later host.Later
	if err != nil && !errors.As(err, &later) {
		l.fail("ask systemd about", name, err)
	}
	return u.Active
}
