// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// engines finds the container engines. What a Kubernetes distribution brings with it comes first,
// since its kubelet uses that; then containerd, CRI-O and Docker. Those of which there is no more
// than a config file come last.
func (l *look) engines(ctx context.Context, os OS) []Engine {
	var found []Engine
	l.distributions = l.findDistributions(ctx)
	for _, d := range l.distributions {
		if d.engine != nil {
			found = append(found, *d.engine)
		}
	}
	for _, e := range [...]*Engine{l.containerd(ctx, os), l.crio(ctx), l.docker(ctx)} {
		if e != nil {
			found = append(found, *e)
		}
	}
	slices.SortStableFunc(found, func(a, b Engine) int { return bare(a) - bare(b) })
	for i := range found {
		found[i].Texts = l.texts
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
func (l *look) start(ctx context.Context, e *Engine, units, places []string) []string {
	s := l.service(ctx, units...)
	argv := l.argv(s)
	if s != nil {
		e.Unit = s.name
		for _, f := range append(l.environ(s).files, s.files...) {
			e.Started = append(e.Started, f.Path)
		}
	}
	name := path.Base(places[0])
	i := -1
	for n, word := range argv {
		info, err := l.v.Stat(word)
		if path.Base(word) == name && (n == 0 || path.IsAbs(word) && err == nil && info.Mode.IsRegular()) {
			i = n
			break
		}
	}
	switch {
	case i >= 0:
		argv = argv[i:] // what comes before it starts it: nice, env, taskset
		if path.IsAbs(argv[0]) {
			e.Binary = l.first(argv[0])
			return e.known(argv)
		}
	case len(argv) > 0:
		e.Wrapper, argv = argv[0], nil // its options are not the engine's
	}
	e.Binary = l.first(places...)
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

const (
	containerdUnit    = "containerd.service"
	containerdDefault = "/etc/containerd/config.toml"
	// Talos has two: that file is of the one that runs its own services, and kubelet's reads this.
	// Sources: siderolabs/talos at ad8823176, pkg/machinery/constants/constants.go
	// (CRIContainerdConfig) and Dockerfile; spegel-org/spegel's documentation on Talos.
	containerdTalos = "/etc/cri/containerd.toml"
)

func (l *look) containerd(ctx context.Context, os OS) *Engine {
	e := &Engine{Name: "containerd"}
	argv := l.start(ctx, e, []string{containerdUnit}, []string{
		"/usr/bin/containerd", "/usr/local/bin/containerd", "/usr/sbin/containerd", "/opt/bin/containerd",
		"/opt/containerd/bin/containerd", "/home/containerd/usr/local/bin/containerd", // the last on GKE of old
	})
	made := containerdDefault
	if os.ID == "talos" {
		made = containerdTalos
	}
	e.Config = cmp.Or(option(argv, "config", "c"), made)
	if bare(*e) == 1 && !l.has(e.Config) {
		return nil
	}
	l.started(ctx, e, argv)
	if e.Config == made { // what the owners write; a unit of the machine's own may name another file
		e.Owner, e.Why = l.owner(os)
	}
	return e
}

func (l *look) engineVersion(ctx context.Context, e *Engine) {
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
	e.Version = l.version(ctx, e.Binary, p)
}

func (l *look) crio(ctx context.Context) *Engine {
	e := &Engine{Name: "crio"}
	argv := l.start(ctx, e, []string{"crio.service"}, []string{"/usr/bin/crio", "/usr/local/bin/crio", "/usr/libexec/crio/crio"})
	l.started(ctx, e, argv)
	if bare(*e) == 1 && e.Files[0].Data == nil && len(e.Files) == 1 {
		return nil
	}
	if l.has("/etc/machine-config-daemon") {
		// OpenShift's operator renders the node's files and reverts what others changed.
		e.Owner, e.Why = "machine-config-operator", "/etc/machine-config-daemon"
	}
	return e
}

const (
	crioDefault = "/etc/crio/crio.conf"
	crioFolder  = "/etc/crio/crio.conf.d"

	dockerDefault = "/etc/docker/daemon.json"
)

func crioSocket(files []File) (socket string) {
	for _, f := range files {
		var c struct {
			Crio struct {
				API struct {
					Listen string `toml:"listen"`
				} `toml:"api"`
			} `toml:"crio"`
		}
		if toml.Unmarshal(f.Data, &c) == nil && c.Crio.API.Listen != "" {
			socket = c.Crio.API.Listen
		}
	}
	return socket
}

// walk lists the files in a folder and its folders, by name.
func (l *look) walk(dir string, depth int) []string {
	var out []string
	for _, name := range l.folder(dir) {
		p := path.Join(dir, name)
		i, err := l.v.Lstat(p)
		switch {
		case err != nil:
		case !i.Mode.IsDir():
			out = append(out, p)
		case depth < 8:
			out = append(out, l.walk(p, depth+1)...)
		}
		if len(out) > maxFiles {
			l.fail("read", dir, errTooManyFiles)
			return out[:maxFiles]
		}
	}
	return out
}

func (l *look) docker(ctx context.Context) *Engine {
	e := &Engine{Name: "docker"}
	argv := l.start(ctx, e, []string{"docker.service"}, []string{"/usr/bin/dockerd", "/usr/local/bin/dockerd", "/usr/sbin/dockerd"})
	e.CRI = l.criDockerd(ctx)
	l.started(ctx, e, argv)
	if bare(*e) == 1 && e.Files[0].Data == nil {
		return nil
	}
	return e
}

// started fills in what an engine reads and where it listens, by its command line.
func (l *look) started(ctx context.Context, e *Engine, argv []string) {
	l.engineVersion(ctx, e)
	argv = e.known(argv)
	switch e.Name {
	case "containerd":
		e.Config = cmp.Or(e.Config, option(argv, "config", "c"), containerdDefault)
		e.Files, e.Socket = l.containerdFiles(e.Config, Globs(e.Version))
		e.Socket = cmp.Or(option(argv, "address", "a"), e.Socket, "/run/containerd/containerd.sock")
	case "crio":
		e.Config = cmp.Or(e.Config, option(argv, "config", "c"), crioDefault)
		e.Folder = cmp.Or(option(argv, "config-dir", "d"), crioFolder)
		e.Files = []File{{Path: e.Config, Data: l.config(e.Config)}} // it may be missing
		for _, f := range l.walk(e.Folder, 0) {                      // of the folder and its folders: UpdateFromPath in CRI-O's pkg/config/config.go
			e.Files = append(e.Files, File{Path: f, Data: l.config(f)})
		}
		e.Socket = cmp.Or(option(argv, "listen"), crioSocket(e.Files), "/run/crio/crio.sock")
	case "docker":
		e.Args, e.Config = argv, cmp.Or(e.Config, option(argv, "config-file"), dockerDefault)
		e.Files = []File{{Path: e.Config, Data: l.read(e.Config)}}
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

// k3sDocker is where K3s runs a cri-dockerd of its own: pkg/agent/config/config_linux.go of
// https://github.com/k3s-io/k3s.
const k3sDocker = "/run/k3s/cri-dockerd/cri-dockerd.sock"

// criDockerd is the socket by which kubelet reaches Docker: systemd listens there for cri-dockerd's
// unit, or the program does itself.
// Source: packaging/systemd of https://github.com/Mirantis/cri-dockerd
func (l *look) criDockerd(ctx context.Context) string {
	if slices.ContainsFunc(l.distributions, func(d distribution) bool { return socketPath(d.kubelet.Endpoint) == k3sDocker }) {
		return k3sDocker
	}
	s := l.service(ctx, "cri-docker.service")
	if s == nil {
		return ""
	}
	at, _ := strings.CutPrefix(option(l.argv(s), "container-runtime-endpoint"), "unix://")
	if socket := l.service(ctx, "cri-docker.socket"); !path.IsAbs(at) && socket != nil && len(socket.listen) > 0 {
		at = strings.Replace(socket.listen[0], "%t", "/run", 1)
	}
	if !path.IsAbs(at) {
		return "/run/cri-dockerd.sock"
	}
	return at
}
