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
	if s.Config == "" || slices.ContainsFunc(found, func(e Engine) bool {
		return bare(e) == 0 && e.Config == s.Config && e.Binary != "" && e.Wrapper == "" && (s.Unit == "" || s.Unit == e.Unit)
	}) {
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
	if i := slices.IndexFunc(found, func(e Engine) bool { return e.Config == s.Config || e.Wrapper != "" || isRancher(e, s.Config) }); e == nil && i >= 0 {
		e = &found[i]
	}
	if e == nil {
		return found
	}
	stated := *e
	switch {
	case slices.Contains(known(), s.Name):
		stated.Name = s.Name
	case !slices.Contains(known(), e.Name):
		stated.Name = "containerd"
	}
	stated.Config, stated.Binary = s.Config, cmp.Or(e.Binary, s.Binary)
	g.started(ctx, &stated, e.Args)
	stated.Wrapper = ""
	if isRancher(*e, s.Config) {
		stated.Socket = e.Socket
	} else if stated.Unit != "" {
		stated.Owner, stated.Why = "", ""
	}
	stated.Texts = g.texts
	return append([]Engine{stated}, found...)
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
