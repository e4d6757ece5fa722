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
	var found []Engine
	g.distributions = g.findDistributions(ctx)
	for _, d := range g.distributions {
		if d.engine != nil {
			found = append(found, *d.engine)
		}
	}
	for _, e := range [...]*Engine{g.containerd(ctx, os), g.crio(ctx), g.docker(ctx)} {
		if e != nil {
			found = append(found, *e)
		}
	}
	slices.SortStableFunc(found, func(a, b Engine) int { return bare(a) - bare(b) })
	for i := range found {
		found[i].Texts = g.texts
	}
	return found
}

// bare is 1 for an engine known from its config file alone.
func bare(e Engine) int {
	if e.Binary == "" && e.Unit == "" {
		return 1
	}
	return 0
}

// start fills in an engine's unit and binary and returns the engine's command line: the binary is
// what the unit starts, or the first of the usual places.
func (g *gathering) start(ctx context.Context, e *Engine, units, places []string) []string {
	s := g.service(ctx, units...)
	argv := g.argv(s)
	if s != nil {
		e.Unit = s.name
		for _, f := range append(g.environ(s).files, s.files...) {
			e.Started = append(e.Started, f.Path)
		}
	}
	name := path.Base(places[0])
	i := -1
	for n, word := range argv {
		info, err := g.v.Stat(word)
		if path.Base(word) == name && (n == 0 || path.IsAbs(word) && err == nil && info.Mode.IsRegular()) {
			i = n
			break
		}
	}
	switch {
	case i >= 0:
		argv = argv[i:] // what comes before it starts it: nice, env, taskset
		if path.IsAbs(argv[0]) {
			e.Binary = g.first(argv[0])
			return e.known(argv)
		}
	case len(argv) > 0:
		e.Wrapper, argv = argv[0], nil // its options are not the engine's
	}
	e.Binary = g.first(places...)
	return e.known(argv)
}

// known is an engine's command line; nil where a relative name in it hides what the engine reads.
func (e *Engine) known(argv []string) []string {
	name := option(argv, "config", "c", "config-dir", "d", "config-file")
	if name == "" || path.IsAbs(name) {
		return argv
	}
	e.Wrapper = "the relative name " + name
	return nil
}

func (g *gathering) engineVersion(ctx context.Context, e *Engine) {
	if e.Binary == "" {
		return
	}
	p := program{ask: true}
	switch e.Name {
	case "containerd":
		p.module = "github.com/containerd/containerd"
		p.packages = []string{"containerd", "containerd.io", "moby-containerd", "containerd2", "containerd-stable", "containerd-app"}
	case "crio":
		p.module = "github.com/cri-o/cri-o"
		p.packages = []string{"cri-o"}
	case "docker":
		p.module = "github.com/docker/docker"
		p.packages = []string{"docker-ce", "docker.io", "moby-engine"}
	}
	e.Version = g.version(ctx, e.Binary, p)
}

const (
	crioDefault = "/etc/crio/crio.conf"
	crioFolder  = "/etc/crio/crio.conf.d"

	dockerDefault = "/etc/docker/daemon.json"
)

// started fills in what an engine reads and where it listens, by its command line.
func (g *gathering) started(ctx context.Context, e *Engine, argv []string) {
	g.engineVersion(ctx, e)
	argv = e.known(argv)
	switch e.Name {
	case "containerd":
		e.Config = cmp.Or(e.Config, option(argv, "config", "c"), containerdDefault)
		e.Files, e.Socket = g.containerdFiles(e.Config, Globs(e.Version))
		e.Socket = cmp.Or(option(argv, "address", "a"), e.Socket, "/run/containerd/containerd.sock")
	case "crio":
		e.Config = cmp.Or(e.Config, option(argv, "config", "c"), crioDefault)
		e.Folder = cmp.Or(option(argv, "config-dir", "d"), crioFolder)
		e.Files = []File{{Path: e.Config, Data: g.config(e.Config)}} // it may be missing
		for _, f := range g.walk(e.Folder, 0) {                      // of the folder and its folders: UpdateFromPath in CRI-O's pkg/config/config.go
			e.Files = append(e.Files, File{Path: f, Data: g.config(f)})
		}
		e.Socket = cmp.Or(option(argv, "listen"), crioSocket(e.Files), "/run/crio/crio.sock")
	case "docker":
		e.Args, e.Config = argv, cmp.Or(e.Config, option(argv, "config-file"), dockerDefault)
		e.Files = []File{{Path: e.Config, Data: g.read(e.Config)}}
		var c struct {
			Hosts []string `json:"hosts"`
		}
		_ = json.Unmarshal(e.Files[0].Data, &c) // a broken file names no socket
		for _, h := range append(c.Hosts, Options(argv, "host", "H")...) {
			if s, ok := strings.CutPrefix(h, "unix://"); ok && e.Socket == "" {
				e.Socket = s
			}
		}
		e.Socket = cmp.Or(e.Socket, "/run/docker.sock")
	}
}

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

// engineName is an engine's name by its program's.
func engineName(program string) string {
	if name := path.Base(program); name != "dockerd" {
		return name
	}
	return "docker"
}

// known are the engines that gpuadm configures.
func known() []string { return []string{"containerd", "crio", "docker"} }
