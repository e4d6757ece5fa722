// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// A NamedEngine is the engine that the spec names, through the file that it reads. All fields but
// Config may be empty.
type NamedEngine struct {
	Name   string // containerd, crio, docker
	Config string // its config file
	Binary string
	Unit   string
}

// named adds the engine that the spec names to those that were found: a process that reads the
// file or runs the program, else a unit that starts such a process, else an engine whose options or
// data folder are not known.
func (g *gathering) named(ctx context.Context, s NamedEngine, found []Engine) []Engine {
	if s.Config == "" || slices.ContainsFunc(found, s.is) {
		return found
	}

	match := g.matcher(s)
	e := g.running(ctx, s.Unit, match)
	if e == nil {
		e = g.startedBy(ctx, match)
	}
	if e == nil {
		e = mayRead(found, s.Config)
	}
	if e == nil {
		return found
	}
	return append([]Engine{g.asNamed(ctx, *e, s)}, found...)
}

// matcher returns the function that recognises the named engine by its program or its config file.
func (g *gathering) matcher(s NamedEngine) matchEngine {
	binary, err := g.v.Resolve(s.Binary)
	if err != nil {
		binary = s.Binary
	}

	return func(argv []string, exe string) bool {
		if len(argv) == 0 {
			return false
		}
		if binary != "" && exe == binary {
			return true
		}
		usual := defaultConfig(engineName(argv[0]))
		config := cmp.Or(option(argv, "config", "c", "config-file"), usual)
		return usual != "" && config == s.Config
	}
}

// asNamed returns an engine with what the spec says of it.
func (g *gathering) asNamed(ctx context.Context, e Engine, s NamedEngine) Engine {
	rancher := isRancher(e, s.Config)
	socket := e.Socket

	switch {
	case slices.Contains(engineNames(), s.Name):
		e.Name = s.Name
	case !slices.Contains(engineNames(), e.Name):
		e.Name = "containerd"
	}

	e.Config = s.Config
	e.Binary = cmp.Or(e.Binary, s.Binary)
	g.filesAndSocket(ctx, &e, e.Args)
	e.Wrapper = ""
	e.Texts = g.texts

	switch {
	case rancher:
		e.Socket = socket
	case e.Unit != "":
		e.Owner = ""
		e.Why = ""
	}

	return e
}

// is says whether an engine that was found is the named one, with all that can be found out.
func (s NamedEngine) is(e Engine) bool {
	named := e.Config == s.Config && (s.Unit == "" || s.Unit == e.Unit)
	return named && e.Binary != "" && e.Wrapper == ""
}

// mayRead returns the first engine that reads a config file, or whose options or data folder are
// unknown; nil if there is none.
func mayRead(found []Engine, config string) *Engine {
	for i, e := range found {
		if e.Config == config || e.Wrapper != "" || isRancher(e, config) {
			return &found[i]
		}
	}
	return nil
}

// isRancher says whether a file is what an engine of K3s or RKE2 would read in another data folder.
func isRancher(e Engine, config string) bool {
	owned := e.Owner == "k3s" || e.Owner == "rke2"
	return owned && strings.HasSuffix(config, "/agent/etc/containerd/config.toml")
}

// matchEngine says whether a command line and the program that it runs are the engine looked for.
type matchEngine func(argv []string, exe string) bool

// running returns the engine that a process runs.
func (g *gathering) running(ctx context.Context, unit string, match matchEngine) *Engine {
	if !g.v.Live() {
		return nil
	}

	for _, pid := range g.pids() {
		argv, runsIn := g.commandOf(pid)
		exe, _ := g.v.Readlink("/proc/" + pid + "/exe")
		otherUnit := unit != "" && unit != runsIn
		if otherUnit || !match(argv, exe) {
			continue
		}
		if g.roots(pid) && !g.inPod(pid) {
			return g.engineOf(ctx, pid, "")
		}
	}

	return nil
}

// startedBy returns the engine that a unit starts, whatever the unit's name is.
func (g *gathering) startedBy(ctx context.Context, match matchEngine) *Engine {
	units := append(slices.Concat(g.unitNames()...), g.list("/usr/lib/systemd/system")...)
	for _, name := range units {
		isTemplate := strings.HasSuffix(name, "@.service")
		if !strings.HasSuffix(name, ".service") || isTemplate {
			continue
		}

		s := g.service(ctx, name)
		argv := g.argv(s)
		if len(argv) == 0 || !match(argv, argv[0]) {
			continue
		}
		e := &Engine{
			Name:   engineName(argv[0]),
			Binary: g.first(argv[0]),
			Unit:   s.name,
			Args:   argv,
		}
		g.filesAndSocket(ctx, e, argv)
		e.Texts = g.texts
		return e
	}

	return nil
}
