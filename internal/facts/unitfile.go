// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// service has the settings of a unit file and its drop-ins that concern a daemon's command line.
type service struct {
	name     string
	active   string   // systemd's ActiveState; "" where none runs
	files    []File   // unit file and drop-ins, in the order systemd reads them
	start    []string // ExecStart= lines
	env      []string // Environment= lines
	envFiles []string // EnvironmentFile= values
	listen   []string // ListenStream= lines of a socket
	requires []string // units that it is stopped and restarted with
}

// service returns the first of the units that the machine has and that is not masked; nil if none.
func (g *gathering) service(ctx context.Context, names ...string) *service {
	for _, name := range names {
		// A question to systemd is a round trip over D-Bus, and most of these units are not there.
		if !g.unitThere(name) {
			continue
		}
		unit, err := g.v.Unit(ctx, name)
		var later host.Later
		if err != nil && !errors.As(err, &later) {
			g.fail("ask systemd about", name, err)
		}
		if unit.Load == "masked" || len(unit.Files) == 0 {
			continue
		}

		s := &service{name: name, active: unit.Active}
		for _, file := range unit.Files {
			data := g.read(file)
			s.files = append(s.files, File{Path: file, Data: data})
			s.add(string(data))
		}

		return s
	}
	return nil
}

// unitThere says whether one of systemd's folders has the unit file: most units do not exist.
// gpuadm lists the folders once, except the distribution's, which has hundreds of files.
// Source: table 1 of https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html
func (g *gathering) unitThere(name string) bool {
	for _, names := range g.unitNames() {
		if _, found := slices.BinarySearch(names, name); found {
			return true
		}
	}
	return g.first("/usr/lib/systemd/system/"+name, "/lib/systemd/system/"+name) != ""
}

// unitNames returns the names in systemd's folders, except the distribution's.
func (g *gathering) unitNames() [][]string {
	if g.units == nil {
		for _, folder := range []string{
			"/etc/systemd/system", "/run/systemd/system",
			"/run/systemd/generator", "/usr/local/lib/systemd/system",
		} {
			g.units = append(g.units, g.list(folder))
		}
	}
	return g.units
}

// serviceOf returns the first of the units, or a unit that an administrator named after the program
// that it starts: K3s's installer makes k3s-NAME.service.
func (g *gathering) serviceOf(ctx context.Context, program string, units ...string) *service {
	if s := g.service(ctx, units...); s != nil {
		return s
	}

	for _, name := range slices.Concat(g.unitNames()...) {
		if !strings.HasPrefix(name, program+"-") || !strings.HasSuffix(name, ".service") {
			continue
		}
		s := g.service(ctx, name)
		argv := g.argv(s)
		if len(argv) > 0 && path.Base(argv[0]) == program {
			return s
		}
	}

	return nil
}

// add reads one more file of the unit: lists grow, an empty value clears them.
// Source: https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html
func (s *service) add(text string) {
	section := ""
	for _, line := range logicalLines(text) {
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		list := s.list(section, strings.TrimSpace(key))
		if !ok || list == nil {
			continue
		}

		value = strings.TrimSpace(value)
		switch {
		case value != "":
			*list = append(*list, value)
		case list != &s.requires: // an empty value clears no dependencies: systemd.unit(5)
			*list = nil
		}
	}
}

// list returns the list of a setting's values; nil for any other setting. systemd restarts the unit
// together with the units that it requires, is bound to or is part of:
// https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html#Requires=
func (s *service) list(section, key string) *[]string {
	switch section + key {
	case "[Service]ExecStart":
		return &s.start
	case "[Service]Environment":
		return &s.env
	case "[Service]EnvironmentFile":
		return &s.envFiles
	case "[Socket]ListenStream":
		return &s.listen
	case "[Unit]Requires", "[Unit]BindsTo", "[Unit]PartOf":
		return &s.requires
	}
	return nil
}

// logicalLines returns the lines that are neither empty nor comments. A backslash at the end
// becomes a blank, and the next line continues the line; comments between them are left out.
func logicalLines(text string) (out []string) {
	var joined strings.Builder
	end := func() {
		if line := strings.TrimSpace(joined.String()); line != "" {
			out = append(out, line)
		}
		joined.Reset()
	}

	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		isComment := strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";")
		if isComment {
			continue
		}
		head, continues := strings.CutSuffix(line, `\`)
		joined.WriteString(head)
		if continues {
			joined.WriteByte(' ')
		} else {
			end()
		}
	}

	end()
	return out
}

// argv returns the daemon's command line as systemd runs it, its variables replaced; nil if the
// unit has none.
func (g *gathering) argv(s *service) []string {
	if s == nil || len(s.start) == 0 {
		return nil
	}
	return commandLine(g.specifiers(s, s.start[0]), func() map[string]string { return g.environment(s) })
}

// environment returns the variables that the unit sets.
func (g *gathering) environment(s *service) map[string]string {
	return g.environ(s).values
}

// environ has the variables that a unit's command line may use.
type environ struct {
	values map[string]string
	from   map[string]string // the environment file that set the variable last; "" = the unit itself
	files  []File            // environment files, which need not exist
}

// pairs are the variables as a process gets them, sorted.
func (e environ) pairs() (all []string) {
	for name, value := range e.values {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return all
}

// environ reads the variables that the unit sets: files win over Environment=, later ones over
// earlier ones.
// Source: EnvironmentFile= in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html
func (g *gathering) environ(s *service) environ {
	e := environ{values: map[string]string{}, from: map[string]string{}}
	for _, line := range s.env {
		for _, word := range Words(g.specifiers(s, line)) {
			if name, value, ok := strings.Cut(word, "="); ok {
				e.values[name] = value
				e.from[name] = ""
			}
		}
	}

	for _, name := range s.envFiles {
		name = strings.ReplaceAll(g.specifiers(s, strings.TrimPrefix(name, "-")), "%%", "%")
		matches := g.glob(name)
		if matches == nil && !strings.ContainsAny(name, `*?[\`) {
			e.files = append(e.files, File{Path: name})
		}
		for _, file := range matches {
			data := g.read(file)
			e.files = append(e.files, File{Path: file, Data: data})
			for _, variable := range Assignments(string(data)) {
				e.values[variable[0]] = variable[1]
				e.from[variable[0]] = file
			}
		}
	}

	return e
}

// specifiers replaces the specifiers of a unit's name and of the host's, and leaves %%, which Words
// reads. Source: "Specifiers" in systemd.unit(5).
func (g *gathering) specifiers(s *service, text string) string {
	if !strings.Contains(text, "%") {
		return text
	}

	stem := strings.TrimSuffix(s.name, ".service")
	hostname := g.hostname()
	short, _, _ := strings.Cut(hostname, ".")
	return strings.NewReplacer(
		"%%", "%%",
		"%n", s.name, "%N", stem, "%p", stem,
		"%H", hostname, "%l", short,
	).Replace(text)
}
