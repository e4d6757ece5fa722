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

// named has the engine that a spec names among those that were found: a process that reads the
// file or runs the program, what a unit starts so, or the engine whose options are not known, or
// whose data folder is not.
func (g *gathering) named(ctx context.Context, s NamedEngine, found []Engine) []Engine {
	isNamed := func(e Engine) bool {
		reads := e.Config == s.Config && (s.Unit == "" || s.Unit == e.Unit)
		return reads && bare(e) == 0 && e.Binary != "" && e.Wrapper == ""
	}
	if s.Config == "" || slices.ContainsFunc(found, isNamed) {
		return found
	}

	at, err := g.v.Resolve(s.Binary)
	if err != nil {
		at = s.Binary
	}
	reads := func(argv []string, exe string) bool {
		if len(argv) == 0 || s.Binary != "" && exe == at {
			return len(argv) > 0
		}
		usual := map[string]string{"containerd": containerdDefault, "crio": crioDefault, "docker": dockerDefault}[engineName(argv[0])]
		return usual != "" && cmp.Or(option(argv, "config", "c", "config-file"), usual) == s.Config
	}
	e := g.running(ctx, s.Unit, reads)
	if e == nil {
		e = g.startedBy(ctx, reads)
	}
	if e == nil {
		e = mayRead(found, s.Config)
	}
	if e == nil {
		return found
	}

	engine := *e
	switch {
	case slices.Contains(known(), s.Name):
		engine.Name = s.Name
	case !slices.Contains(known(), e.Name):
		engine.Name = "containerd"
	}
	engine.Config = s.Config
	engine.Binary = cmp.Or(e.Binary, s.Binary)
	g.started(ctx, &engine, e.Args)
	engine.Wrapper = ""
	if isRancher(*e, s.Config) {
		engine.Socket = e.Socket
	} else if engine.Unit != "" {
		engine.Owner, engine.Why = "", ""
	}
	engine.Texts = g.texts
	return append([]Engine{engine}, found...)
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
	return (e.Owner == "k3s" || e.Owner == "rke2") && strings.HasSuffix(config, "/agent/etc/containerd/config.toml")
}

// running is the engine that a process is.
func (g *gathering) running(ctx context.Context, unit string, reads func(argv []string, exe string) bool) *Engine {
	if !g.v.Live() {
		return nil
	}
	for _, pid := range g.pids() {
		argv, in := g.commandOf(pid)
		exe, _ := g.v.Readlink("/proc/" + pid + "/exe")
		if (unit == "" || unit == in) && reads(argv, exe) && g.roots(pid) && !g.inPod(pid) {
			return g.engineOf(ctx, pid, "")
		}
	}
	return nil
}

// startedBy is the engine that a unit starts, of whatever name.
func (g *gathering) startedBy(ctx context.Context, reads func(argv []string, exe string) bool) *Engine {
	for _, name := range append(slices.Concat(g.unitNames()...), g.list("/usr/lib/systemd/system")...) {
		if !strings.HasSuffix(name, ".service") || strings.HasSuffix(name, "@.service") { // a template is no unit
			continue
		}
		s := g.service(ctx, name)
		if argv := g.argv(s); len(argv) > 0 && reads(argv, argv[0]) {
			e := &Engine{Name: engineName(argv[0]), Binary: g.first(argv[0]), Unit: s.name, Args: argv}
			g.started(ctx, e, argv)
			e.Texts = g.texts
			return e
		}
	}
	return nil
}
