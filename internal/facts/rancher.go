// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A rancherStart is how K3s or RKE2 is started: its unit, and all places where its settings can be.
type rancherStart struct {
	name     string // k3s, rke2
	unit     string
	argv     []string
	config   string // the path of its config file
	data     string // its folder
	env      map[string]string
	settings map[string][]string
	files    []File
}

// values returns all values of a setting. The command line wins over files:
// https://docs.k3s.io/installation/configuration.
func (r rancherStart) values(names ...string) []string {
	if given := Options(r.argv, names...); given != nil {
		return given
	}
	return r.settings[names[0]]
}

// lastValue returns the value of a setting that has one value.
func (r rancherStart) lastValue(names ...string) string {
	all := r.values(names...)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// nodeName returns the node's name by the settings; "" if they have none. With with-node-id K3s
// appends an id, and only the certificate has that. Sources: pkg/cli/cmds/agent.go and
// pkg/agent/config/config.go of https://github.com/k3s-io/k3s.
func (r rancherStart) nodeName() string {
	return cmp.Or(r.lastValue("node-name"), r.env[strings.ToUpper(r.name)+"_NODE_NAME"])
}

// rancher finds K3s and RKE2, which lay out their data in the same way. The engine's config is
// rendered at each start.
// Source: pkg/agent/containerd/config.go of https://github.com/k3s-io/k3s,
// https://docs.k3s.io/advanced, https://docs.rke2.io/advanced
func (g *gathering) rancher(ctx context.Context, name string, units ...string) *distribution {
	home := "/var/lib/rancher/" + name
	s := g.serviceOf(ctx, name, units...)
	if s == nil && !g.hasRun(home) {
		return nil
	}

	r := g.rancherStart(name, home, s)
	d := &distribution{kubelet: g.rancherKubelet(r)}
	if s != nil {
		d.kubelet.Unit = s.name
		d.kubelet.Active = s.active
	}

	docker := slices.Contains(r.argv, "--docker") || r.lastValue("docker") == "true"
	endpoint := r.lastValue("container-runtime-endpoint")
	switch {
	case name == "k3s" && docker:
		d.kubelet.Endpoint = "unix://" + k3sDocker
		return d
	case endpoint != "":
		d.kubelet.Endpoint = endpoint
		return d
	}

	bin := r.data + "/data/current/bin/"
	if name == "rke2" {
		bin = r.data + "/bin/"
		d.kubelet.Binary = g.first(bin + "kubelet")
	}
	e := &Engine{
		Name:   "containerd",
		Binary: g.first(bin + "containerd"),
		Config: r.data + "/agent/etc/containerd/config.toml",
		Owner:  name,
		Unit:   r.unit,
		Why:    cmp.Or(r.unit, home+"/agent"),
	}
	g.engineVersion(ctx, e)
	files, socket := g.containerdFiles(e.Config, Globs(e.Version))
	e.Files = files
	e.Socket = cmp.Or(socket, "/run/k3s/containerd/containerd.sock")

	d.engine = e
	d.kubelet.Endpoint = cmp.Or(d.kubelet.Endpoint, "unix://"+e.Socket)
	return d
}

// hasRun says whether K3s or RKE2 has made its folder. gpuadm may have made a part of it: the
// folder of drop-ins, which the file of another containerd can import.
func (g *gathering) hasRun(home string) bool {
	isOther := func(dir, known string) bool {
		return slices.ContainsFunc(g.list(dir), func(name string) bool {
			return name != known
		})
	}

	agent := home + "/agent"
	if !g.exists(agent) {
		return false
	}
	return isOther(home, "agent") || isOther(agent, "etc") || isOther(agent+"/etc", "containerd") ||
		g.exists(agent+"/etc/containerd/config.toml")
}

// rancherStart reads all places of settings. An environment variable wins for the data folder and
// the config file; the value of a later file replaces an earlier one, unless its key ends in +.
// Sources: findDataDir in cmd/k3s/main.go, and pkg/configfilearg/parser.go, of
// https://github.com/k3s-io/k3s.
func (g *gathering) rancherStart(name, home string, s *service) rancherStart {
	r := rancherStart{
		name:     name,
		argv:     g.argv(s),
		settings: map[string][]string{},
	}
	if s != nil {
		r.unit = s.name
		r.env = g.environment(s)
	}

	variable := strings.ToUpper(name)
	r.config = cmp.Or(
		r.env[variable+"_CONFIG_FILE"],
		option(r.argv, "config", "c"),
		"/etc/rancher/"+name+"/config.yaml",
	)
	if path.IsAbs(r.config) { // it may be an address
		r.files = g.rancherFiles(r.config)
	}
	for _, f := range r.files {
		r.add(f.Data)
	}

	r.data = cmp.Or(r.env[variable+"_DATA_DIR"], r.lastValue("data-dir", "d"), home)
	return r
}

// rancherFiles returns the config file and those in the folder that belongs to it.
func (g *gathering) rancherFiles(config string) []File {
	files := []File{{Path: config, Data: g.read(config)}}
	dir := config + ".d"
	for _, name := range g.folder(dir) {
		if ending := path.Ext(name); ending == ".yaml" || ending == ".yml" {
			file := path.Join(dir, name)
			files = append(files, File{Path: file, Data: g.read(file)})
		}
		if len(files) > maxFiles {
			g.fail("read", dir, errTooManyFiles)
			break
		}
	}

	return files
}

// add takes over the settings of one more file.
func (r rancherStart) add(data []byte) {
	var doc map[string]yaml.Node
	if len(data) > maxParsed || yaml.Unmarshal(data, &doc) != nil {
		return
	}

	for key, node := range doc {
		var list []string
		if node.Decode(&list) != nil {
			var one string
			if node.Decode(&one) != nil {
				continue
			}
			list = []string{one}
		}

		name, adds := strings.CutSuffix(key, "+")
		if adds {
			list = append(r.settings[name], list...)
		}
		r.settings[name] = list
	}
}

// rancherKubelet is the kubelet of K3s or RKE2. They configure it with a folder of files, and take
// labels and taints in a config of their own. Source: pkg/daemons/agent/agent_linux.go and
// pkg/agent/config/config.go of https://github.com/k3s-io/k3s
func (g *gathering) rancherKubelet(r rancherStart) Kubelet {
	k := Kubelet{ConfigOwner: r.name, Files: r.files}
	g.mergeDropIns(&k, r.data+"/agent/etc/kubelet.conf.d")

	certified := k.credentials(g, r.data+"/agent/kubelet.kubeconfig")
	if !g.exists(k.Kubeconfig) {
		k.Kubeconfig = "" // only the data folder's own is known
	}
	k.NodeName = nodeName(cmp.Or(certified, r.nodeName()), g.hostname())

	argv := []string{"kubelet"}
	for _, arg := range r.values("kubelet-arg") {
		argv = append(argv, "--"+strings.TrimLeft(arg, "-"))
	}
	k.Dir = cmp.Or(option(argv, "root-dir"), k.Dir)
	k.Labels = labels(append(r.values("node-label"), Options(argv, "node-labels")...))

	k.Taints = taints(strings.Join(r.values("node-taint"), ","))
	taintArgs := Options(argv, "register-with-taints")
	for _, list := range taintArgs { // it comes after K3s's own, and wins
		k.Taints = taints(list)
	}

	k.LabelsAt, k.TaintsAt = r.places(taintArgs)
	return k
}

// places says where gpuadm adds labels and taints: in its own file in the config file's folder.
func (r rancherStart) places(taintArgs []string) (labels, taints Place) {
	if !path.IsAbs(r.config) {
		none := Place{Why: r.unit + " reads its settings from " + r.config}
		return none, none
	}

	dir := r.config + ".d"
	labels = Place{How: "drop-in", File: dir, Key: "node-label+"}
	if len(Options(r.argv, "node-label")) > 0 {
		labels = Place{Why: r.unit + " has --node-label on its command line, which its files cannot add to"}
	}

	taints = Place{How: "drop-in", File: dir, Key: "node-taint+"}
	switch {
	case len(taintArgs) > 0:
		taints = Place{Why: r.name + " has register-with-taints in its kubelet-arg, which wins over node-taint"}
	case len(Options(r.argv, "node-taint")) > 0:
		taints = Place{Why: r.unit + " has --node-taint on its command line, which its files cannot add to"}
	}

	return labels, taints
}
