// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// A NamedEngine is the engine that the spec names, through the file that it reads. All but Config
// may be empty.
type NamedEngine struct{ Name, Config, Binary, Unit string }

// named adds the engine that the spec names to those that were found: a process that reads the
// file or runs the program, else a unit that starts such a process, else an engine whose options or
// data folder are not known.
func (g *gathering) named(ctx context.Context, s NamedEngine, found []Engine) []Engine {
	if s.Config == "" || slices.ContainsFunc(found, s.is) {
		return found
	}

	binary, err := g.v.Resolve(s.Binary)
	if err != nil {
		binary = s.Binary
	}
	isNamed := func(argv []string, exe string) bool {
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
	e := g.running(ctx, s.Unit, isNamed)
	if e == nil {
		e = g.startedBy(ctx, isNamed)
	}
	if e == nil {
		e = mayRead(found, s.Config)
	}
	if e == nil {
		return found
	}

	engine := *e
	switch {
	case slices.Contains(engineNames(), s.Name):
		engine.Name = s.Name
	case !slices.Contains(engineNames(), e.Name):
		engine.Name = "containerd"
	}
	engine.Config = s.Config
	engine.Binary = cmp.Or(e.Binary, s.Binary)
	g.filesAndSocket(ctx, &engine, e.Args)
	engine.Wrapper = ""

	if isRancher(*e, s.Config) {
		engine.Socket = e.Socket
	} else if engine.Unit != "" {
		engine.Owner = ""
		engine.Why = ""
	}
	engine.Texts = g.texts
	return append([]Engine{engine}, found...)
}

// is says whether an engine that was found is the named one, and nothing more is to be found out.
func (s NamedEngine) is(e Engine) bool {
	named := e.Config == s.Config && (s.Unit == "" || s.Unit == e.Unit)
	return named && e.Binary != "" && e.Wrapper == ""
}

// mayRead returns the first engine that reads a config file, or whose options or data folder are not
// known; nil if there is none.
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

// running is the engine that a process is.
func (g *gathering) running(ctx context.Context, unit string, match matchEngine) *Engine {
	if !g.v.Live() {
		return nil
	}

	for _, pid := range g.pids() {
		argv, runsIn := g.commandOf(pid)
		exe, _ := g.v.Readlink("/proc/" + pid + "/exe")
		if unit != "" && unit != runsIn || !match(argv, exe) {
			continue
		}
		if g.roots(pid) && !g.inPod(pid) {
			return g.engineOf(ctx, pid, "")
		}
	}
	return nil
}

// startedBy is the engine that a unit starts, of whatever name.
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
