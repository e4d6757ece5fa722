// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// engines finds the container engines. What a Kubernetes distribution brings with it comes first,
// since its kubelet uses that; then containerd, CRI-O and Docker. Engines with only a config file
// come last.
func (g *gathering) engines(ctx context.Context, os OS) []Engine {
	g.distributions = g.findDistributions(ctx)
	var all []*Engine
	for _, d := range g.distributions {
		all = append(all, d.engine)
	}
	all = append(all, g.containerd(ctx, os), g.crio(ctx), g.docker(ctx))

	var found []Engine
	for _, e := range all {
		if e != nil {
			e.Texts = g.texts
			found = append(found, *e)
		}
	}

	return withoutBare(found)
}

// onlyConfig says whether only a config file of the engine was found.
func (e *Engine) onlyConfig() bool { return e.Binary == "" && e.Unit == "" }

// withoutBare leaves out a config file of which no engine is known, where another engine of the
// name is installed: that one may read it, or the file is left over. Else such engines come last.
func withoutBare(all []Engine) []Engine {
	var installed, bare []Engine
	for _, e := range all {
		if e.onlyConfig() {
			bare = append(bare, e)
		} else {
			installed = append(installed, e)
		}
	}

	isInstalled := func(e Engine) bool {
		return slices.ContainsFunc(installed, func(other Engine) bool {
			return other.Name == e.Name
		})
	}

	return append(installed, slices.DeleteFunc(bare, isInstalled)...)
}

// unitAndBinary fills in an engine's unit and binary and returns the engine's command line: the
// binary is what the unit starts, or the first of the usual places.
func (g *gathering) unitAndBinary(ctx context.Context, e *Engine, units, places []string) []string {
	s := g.service(ctx, units...)
	argv := g.argv(s)
	if s != nil {
		e.Unit = s.name
		e.Env = g.environ(s).pairs()
		for _, f := range append(g.environ(s).files, s.files...) {
			e.Started = append(e.Started, f.Path)
		}
	}

	i := g.programAt(argv, path.Base(places[0]))
	switch {
	case i >= 0:
		argv = argv[i:] // what comes before it starts it: nice, env, taskset
		if path.IsAbs(argv[0]) {
			e.Binary = g.first(argv[0])
			return e.knownArgs(argv)
		}
	case len(argv) > 0:
		e.Wrapper = argv[0]
		argv = nil // its options are not the engine's
	}

	e.Binary = g.first(places...)
	return e.knownArgs(argv)
}

// programAt returns the index of the program in a unit's command line; -1 if another program starts
// it.
func (g *gathering) programAt(argv []string, name string) int {
	for i, word := range argv {
		if path.Base(word) != name {
			continue
		}
		if i == 0 || path.IsAbs(word) && g.isFile(word) {
			return i
		}
	}
	return -1
}

// knownArgs returns an engine's command line; nil if a relative name in it hides which file the
// engine reads.
func (e *Engine) knownArgs(argv []string) []string {
	file := option(argv, "config", "c", "config-file")
	folder := option(argv, "config-dir", "d")
	for _, name := range []string{file, folder} {
		if name != "" && !path.IsAbs(name) {
			e.Wrapper = "the relative name " + name
			return nil
		}
	}
	return argv
}

func (g *gathering) engineVersion(ctx context.Context, e *Engine) {
	if e.Binary == "" {
		return
	}

	p := program{ask: true, module: engineModule(e.Name)}
	switch e.Name {
	case "containerd":
		p.packages = []string{
			"containerd", "containerd.io", "moby-containerd",
			"containerd2", "containerd-stable", "containerd-app",
		}
	case "crio":
		p.packages = []string{"cri-o"}
	case "docker":
		p.packages = []string{"docker-ce", "docker.io", "moby-engine"}
	}

	e.Version = g.version(ctx, e.Binary, p)
}

// engineModule is the Go module that an engine's program is built from; "" if none is known.
func engineModule(name string) string {
	switch name {
	case "containerd":
		return "github.com/containerd/containerd"
	case "crio":
		return "github.com/cri-o/cri-o"
	case "docker":
		return "github.com/docker/docker"
	}
	return ""
}

const (
	crioDefault = "/etc/crio/crio.conf"
	crioFolder  = "/etc/crio/crio.conf.d"

	dockerDefault = "/etc/docker/daemon.json"
)

// defaultConfig returns the config file that an engine reads if its command line names none.
func defaultConfig(engine string) string {
	switch engine {
	case "containerd":
		return containerdDefault
	case "crio":
		return crioDefault
	case "docker":
		return dockerDefault
	}
	return ""
}

// filesAndSocket fills in the files that an engine reads and its socket, by its command line.
func (g *gathering) filesAndSocket(ctx context.Context, e *Engine, argv []string) {
	g.engineVersion(ctx, e)
	argv = e.knownArgs(argv)
	e.Args = argv
	switch e.Name {
	case "containerd":
		g.containerdReads(e, argv)
	case "crio":
		g.crioReads(e, argv)
	case "docker":
		g.dockerReads(e, argv)
	}
}

func (g *gathering) containerdReads(e *Engine, argv []string) {
	e.Config = cmp.Or(e.Config, option(argv, "config", "c"), containerdDefault)
	files, socket := g.containerdFiles(e.Config, Globs(e.Version))
	e.Files = files
	e.Socket = cmp.Or(option(argv, "address", "a"), socket, "/run/containerd/containerd.sock")
}

func (g *gathering) crioReads(e *Engine, argv []string) {
	e.Config = cmp.Or(e.Config, option(argv, "config", "c"), crioDefault)
	e.Folder = cmp.Or(option(argv, "config-dir", "d"), crioFolder)
	e.Files = []File{{Path: e.Config, Data: g.config(e.Config)}} // it may be missing

	// Of the folder and its folders: UpdateFromPath in CRI-O's pkg/config/config.go.
	for _, name := range g.walk(e.Folder, 0) {
		e.Files = append(e.Files, File{Path: name, Data: g.config(name)})
	}
	e.Socket = cmp.Or(option(argv, "listen"), crioSocket(e.Files), "/run/crio/crio.sock")
}

func (g *gathering) dockerReads(e *Engine, argv []string) {
	e.Config = cmp.Or(e.Config, option(argv, "config-file"), dockerDefault)
	data := g.read(e.Config)
	e.Files = []File{{Path: e.Config, Data: data}}

	var config struct {
		Hosts []string `json:"hosts"`
	}
	_ = json.Unmarshal(data, &config) // a broken file names no socket
	for _, host := range append(config.Hosts, Options(argv, "host", "H")...) {
		socket, isUnix := strings.CutPrefix(host, "unix://")
		if isUnix {
			e.Socket = cmp.Or(e.Socket, socket)
		}
	}

	e.Socket = cmp.Or(e.Socket, "/run/docker.sock")
}

// Engine is one container engine found on the machine.
type Engine struct {
	Name    string `json:"name"`              // containerd, crio, docker
	Version string `json:"version,omitempty"` // the project's own: 1.7.24, 2.0.0-rc.1; "" if unknown

	// Binary is /usr/bin/containerd. Binary and Unit are "" if only a config file exists.
	Binary string `json:"binary"`
	Socket string `json:"socket,omitempty"` // /run/containerd/containerd.sock

	// CRI is the socket of cri-dockerd, through which a kubelet uses Docker; "" without one.
	CRI string `json:"cri,omitempty"`

	Unit   string `json:"unit,omitempty"` // containerd.service
	Config string `json:"config"`         // /etc/containerd/config.toml, which need not exist

	// Folder has CRI-O's drop-ins, /etc/crio/crio.conf.d, or what k0s adds to the config that it
	// makes. It need not exist.
	Folder string `json:"folder,omitempty"`
	// Wrapper hides the engine's options: the program with which the unit starts the engine, or a
	// relative name.
	Wrapper string `json:"wrapper,omitempty"`

	// Owner rewrites the config file: nodeadm, aks, gke, k3s, rke2, …; "" if there is no owner.
	Owner string `json:"owner,omitempty"`
	Why   string `json:"why,omitempty"`   // the sign by which the owner was recognised
	Files []File `json:"files,omitempty"` // the config file and its imports, in the order of reading

	Child bool `json:"-"` // the unit's main process is another program, which starts the engine

	Args []string `json:"-"` // the command line; nil if unknown
	Env  []string `json:"-"` // the variables that the unit sets, "NAME=VALUE"
	// Started are the files that decide how the engine starts: environment files, then those of the
	// unit, which win.
	Started []string `json:"-"`
	// Expands has pairs for strings.NewReplacer: the values with which MicroK8s replaces variables
	// in the template that is Config.
	Expands []string `json:"-"`

	Texts *toml.Texts `json:"-"` // the files, parsed
}

// File is a config file's bytes. They are not printed: such files may hold passwords.
type File struct {
	Path string `json:"path"`
	Data []byte `json:"-"` // nil: not there, or no file
	Is   string `json:"-"` // what is there that is not a file: "a folder"
}

// engineName returns an engine's name, by that of its program.
func engineName(program string) string {
	name := path.Base(program)
	if name == "dockerd" {
		return "docker"
	}
	return name
}

// engineNames returns the engines that gpuadm configures.
func engineNames() []string { return []string{"containerd", "crio", "docker"} }
