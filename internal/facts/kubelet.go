// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// kubelet reads kubelet's unit, command line and config files.
func (g *gathering) kubelet(ctx context.Context, engines []Engine) Kubelet {
	s := g.service(ctx, append([]string{"kubelet.service"}, snapKubelets()...)...)
	if s == nil && len(g.distributions) > 0 {
		active := func(d distribution) bool { return d.kubelet.Active == "active" }
		i := max(slices.IndexFunc(g.distributions, active), 0)
		return g.distributions[i].kubelet
	}

	places := []string{"/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet"}
	k := Kubelet{Binary: g.first(append(places, platform.Kubelets()...)...)}
	var c kubeletCommand
	if s != nil {
		c = g.kubeletCommand(s)
		g.unitOf(&k, c)
	}
	argv := c.argv
	if len(argv) == 0 && g.v.Live() {
		argv = g.runningKubelet(&k)
	}
	if s == nil && k.Binary == "" {
		return k
	}
	if s == nil {
		c.argv = argv
		c.from = make([]string, len(argv))
	}

	k.Args = argv[min(1, len(argv)):]
	k.Dir = option(argv, "root-dir")
	k.Files = c.environ.files
	k.ConfigOwner = configOwner(c, engines)
	g.kubeletConfig(&k, argv)
	k.credentials(g, option(argv, "kubeconfig"))
	k.NodeName = nodeName(option(argv, "hostname-override"), g.hostname())
	k.flags(c)
	if k.Binary != "" {
		// It is not run to tell its version: that takes longer than all else here.
		k.Version = g.version(ctx, k.Binary, program{
			packages: []string{"kubelet"},
			module:   "k8s.io/kubernetes",
		})
	}

	return k
}

// unitOf fills in what kubelet's unit says.
func (g *gathering) unitOf(k *Kubelet, c kubeletCommand) {
	k.Unit = c.name
	k.Active = c.active
	for _, units := range c.requires {
		k.Requires = append(k.Requires, strings.Fields(units)...)
	}
	if len(c.argv) > 0 && path.IsAbs(c.argv[0]) && g.exists(c.argv[0]) {
		k.Binary = c.argv[0]
	}
}

// kubeletCommand reads the command line of kubelet's unit, which may start kubelet through another
// program.
func (g *gathering) kubeletCommand(s *service) kubeletCommand {
	c := kubeletCommand{service: s, environ: g.environ(s)}
	if len(s.start) == 0 {
		return c
	}
	line := g.specifiers(s, s.start[0])
	argv, from := traced(line, func() map[string]string { return c.values })
	i := slices.IndexFunc(argv, func(word string) bool { return path.Base(word) == "kubelet" })
	switch {
	case i < 0:
		return c // a wrapper's, which names no kubelet
	case i > 0 && !(path.IsAbs(argv[i]) && g.exists(argv[i])):
		return c
	}

	c.argv = argv[i:]
	c.from = from[i:]
	return c
}

// runningKubelet fills in a kubelet that a wrapper has started, or a distribution that gpuadm does
// not know, and returns its command line; nil if none runs. Of two kubelets the first is this
// machine's: another one runs in a container and was started later.
func (g *gathering) runningKubelet(k *Kubelet) []string {
	for _, pid := range g.processes("kubelet") {
		if g.inPod(pid) {
			continue
		}
		argv, unit := g.commandOf(pid)
		k.Unit = cmp.Or(k.Unit, unit)
		k.Active = "active"
		k.Binary, _ = g.v.Readlink("/proc/" + pid + "/exe")
		return argv
	}
	return nil
}

// kubeletCommand is kubelet's command line and where each of its arguments comes from.
type kubeletCommand struct {
	*service
	environ
	argv []string // nil if the unit starts something else
	from []string // the variable that each came from; "" = the unit's own text
}

// configOwner names the program that writes the files of a kubelet with a unit of its own.
func configOwner(c kubeletCommand, engines []Engine) string {
	for _, f := range c.environ.files {
		if writer := platform.KubeletWriter(f.Path); writer != "" {
			return writer
		}
	}

	for _, e := range engines {
		if platform.Writes(e.Owner) {
			return e.Owner
		}
	}

	return ""
}

// nodeName returns the name that kubelet gives its node: GetHostname in pkg/util/node of
// Kubernetes.
func nodeName(override, hostname string) string {
	return strings.ToLower(cmp.Or(strings.TrimSpace(override), hostname))
}

// Kubelet has the facts about the kubelet, before and after the machine has joined.
type Kubelet struct {
	Binary  string `json:"binary,omitempty"`
	Version string `json:"version,omitempty"` // if it can be read; gpuadm does not run kubelet to ask

	// Unit is kubelet.service, or the unit of K3s or RKE2, of which kubelet is a part.
	Unit     string   `json:"unit,omitempty"`
	Active   string   `json:"active,omitempty"`   // systemd's ActiveState of the unit; "" if no systemd runs
	Args     []string `json:"-"`                  // the command line, without the program
	Requires []string `json:"requires,omitempty"` // units whose restart restarts kubelet

	Config string `json:"config,omitempty"` // the KubeletConfiguration file
	// ConfigOwner writes kubelet's files: kubeadm (only for the join), nodeadm, aks, gke, k3s,
	// rke2, k0s, microk8s, k8s; "" if no program does.
	ConfigOwner string `json:"configOwner,omitempty"`

	Dir          string `json:"dir,omitempty"`          // --root-dir, if set; Folder has the default
	CgroupDriver string `json:"cgroupDriver,omitempty"` // systemd, cgroupfs; "" if unknown
	Endpoint     string `json:"endpoint,omitempty"`     // containerRuntimeEndpoint, if set

	Kubeconfig string `json:"kubeconfig,omitempty"` // on the command line
	// NodeName is the name on the command line, else the host's name in lower case; a cloud may
	// give the node another one.
	NodeName string `json:"nodeName,omitempty"`

	Joined   bool      `json:"joined,omitempty"` // the kubeconfig and the credentials that it names exist
	Begins   time.Time `json:"-"`                // the client certificate is valid from then on
	Expired  time.Time `json:"expired,omitzero"` // the client certificate's end; zero without one
	Identity string    `json:"-"`                // the client certificate's: system:node:NAME; "" without one

	Labels   map[string]string `json:"labels,omitempty"` // with which kubelet registers the node
	Taints   []Taint           `json:"taints,omitempty"` // with which kubelet registers the node
	LabelsAt Place             `json:"labelsAt,omitzero"`
	TaintsAt Place             `json:"taintsAt,omitzero"`

	// Files are the unit's environment files and kubelet's config files, which need not exist, in
	// the order in which they are read.
	Files []File `json:"files,omitempty"`
}

// Folder is where kubelet keeps its state: the sockets of DRA drivers and pods' folders. The
// sockets of device plugins are always in PluginSockets.
func (k Kubelet) Folder() string { return cmp.Or(k.Dir, "/var/lib/kubelet") }

// PluginSockets is where device plugins listen, wherever kubelet keeps its state.
// Sources: DevicePluginPath in k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go;
// kubernetes issues 83226 and 120626; kubernetes/website pull 55430.
const PluginSockets = "/var/lib/kubelet/device-plugins"

// Reads returns the files that kubelet reads when it starts, each once.
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
	//   - "env": the variable Var in the file File of KEY=VALUE lines has an administrator's flags;
	//     the file need not exist
	//   - "drop-in": gpuadm's file in the folder File, which need not exist: OwnConf, a
	//     KubeletConfiguration with the whole list under Key, or OwnSettings, for K3s and RKE2,
	//     with the Key "node-label+" that adds to the list
	//   - "": there is no such place, and Why says why
	How  string `json:"how,omitempty"`
	File string `json:"file,omitempty"`
	Var  string `json:"var,omitempty"`
	Key  string `json:"key,omitempty"`
	Why  string `json:"why,omitempty"`

	// Others are the taints that kubelet would register with if neither Var nor OwnConf had any. A
	// later list replaces them, so gpuadm's list must repeat them.
	Others []Taint `json:"-"`
}

// gpuadm's files in an owner's folders. The daemons read a folder in the order of names, and the
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
