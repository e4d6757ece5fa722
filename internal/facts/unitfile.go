// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// service is what a unit file and its drop-ins say of a daemon's command line.
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
func (l *look) service(ctx context.Context, names ...string) *service {
	for _, name := range names {
		// A question to systemd is a round trip over D-Bus, and most of these units are not there.
		if !l.unitThere(name) {
			continue
		}
		u, err := l.v.Unit(ctx, name)
		var later host.Later
		if err != nil && !errors.As(err, &later) {
			l.fail("ask systemd about", name, err)
		}
		if u.Load == "masked" || len(u.Files) == 0 {
			continue
		}
		s := &service{name: name, active: u.Active}
		for _, f := range u.Files {
			s.files = append(s.files, File{f, l.read(f)})
			s.add(string(s.files[len(s.files)-1].Data))
		}
		return s
	}
	return nil
}

// unitThere says whether one of systemd's folders holds the unit file: most are not there. The
// folders are listed once, but for the distribution's, which has hundreds of files.
// Source: table 1 of https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html
func (l *look) unitThere(name string) bool {
	there := func(names []string) bool {
		_, found := slices.BinarySearch(names, name)
		return found
	}
	return slices.ContainsFunc(l.unitNames(), there) || l.first("/usr/lib/systemd/system/"+name, "/lib/systemd/system/"+name) != ""
}

// unitNames are the names in systemd's folders, but for the distribution's.
func (l *look) unitNames() [][]string {
	if l.units == nil {
		for _, folder := range []string{"/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator", "/usr/local/lib/systemd/system"} {
			l.units = append(l.units, l.names(folder))
		}
	}
	return l.units
}

// serviceOf returns the first of the units, or a unit that an administrator named after the program
// that it starts: K3s's installer makes k3s-NAME.service.
func (l *look) serviceOf(ctx context.Context, program string, units ...string) *service {
	if s := l.service(ctx, units...); s != nil {
		return s
	}
	for _, names := range l.unitNames() {
		for _, name := range names {
			if !strings.HasPrefix(name, program+"-") || !strings.HasSuffix(name, ".service") {
				continue
			}
			s := l.service(ctx, name)
			if argv := l.argv(s); len(argv) > 0 && path.Base(argv[0]) == program {
				return s
			}
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
		if value = strings.TrimSpace(value); value == "" {
			*list = nil
		} else {
			*list = append(*list, value)
		}
	}
}

// list is where a setting's values go; nil for any other setting. A restart of what is required,
// bound to or part of restarts the unit too:
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

// logicalLines returns the lines that are not empty and no comments. A backslash at the end becomes
// a blank and the next line goes on, comments between them left out.
func logicalLines(text string) (out []string) {
	var open strings.Builder
	end := func() {
		if line := strings.TrimSpace(open.String()); line != "" {
			out = append(out, line)
		}
		open.Reset()
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		head, more := strings.CutSuffix(line, `\`)
		if open.WriteString(head); more {
			open.WriteByte(' ')
		} else {
			end()
		}
	}
	end()
	return out
}

// argv returns the daemon's command line as systemd runs it, its variables replaced; nil if the
// unit has none.
func (l *look) argv(s *service) []string {
	if s == nil || len(s.start) == 0 {
		return nil
	}
	return commandLine(s.start[0], func() map[string]string { return l.environment(s) })
}

// environment returns the variables that the unit sets.
func (l *look) environment(s *service) map[string]string { return l.environ(s).values }

// environ is what a unit's command line may use.
type environ struct {
	values map[string]string
	from   map[string]string // the environment file that set the variable last; "" = the unit itself
	files  []File            // environment files, there or not
}

// environ reads the variables that the unit sets: files win over Environment=, later ones over
// earlier ones.
// Source: EnvironmentFile= in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html
func (l *look) environ(s *service) environ {
	e := environ{values: map[string]string{}, from: map[string]string{}}
	for _, line := range s.env {
		for _, word := range Words(line) {
			if k, v, ok := strings.Cut(word, "="); ok {
				e.values[k], e.from[k] = v, ""
			}
		}
	}
	for _, name := range s.envFiles {
		name = s.specifiers(strings.TrimPrefix(name, "-"))
		there := l.glob(name)
		if there == nil && !strings.ContainsAny(name, `*?[\`) {
			e.files = append(e.files, File{Path: name})
		}
		for _, file := range there {
			data := l.read(file)
			e.files = append(e.files, File{file, data})
			for _, kv := range Assignments(string(data)) {
				e.values[kv[0]], e.from[kv[0]] = kv[1], file
			}
		}
	}
	return e
}

// specifiers replaces those of a unit's name that are used in names of files: "Specifiers" in
// systemd.unit(5).
func (s *service) specifiers(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	stem := strings.TrimSuffix(s.name, ".service")
	return strings.NewReplacer("%%", "%", "%n", s.name, "%N", stem, "%p", stem).Replace(text)
}

// commandLine splits an ExecStart= value into arguments. The environment is asked for only where it
// is needed.
// Source: "Command lines" in
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
func commandLine(line string, environment func() map[string]string) []string {
	args, _ := traced(line, environment)
	return args
}

// traced is commandLine; the second list says of each argument which variable, alone, it came from:
// "" = none.
func traced(line string, environment func() map[string]string) (args, from []string) {
	args = Words(line)
	if i := slices.Index(args, ";"); i >= 0 {
		args = args[:i] // a second command
	}
	if len(args) == 0 {
		return nil, nil
	}
	expand, named := true, false
	for args[0] != "" && strings.IndexByte("@-:+!|", args[0][0]) >= 0 {
		expand = expand && args[0][0] != ':'
		named = named || args[0][0] == '@'
		args[0] = args[0][1:]
	}
	if named && len(args) > 1 {
		args = slices.Delete(args, 1, 2) // what the process shall be called
	}
	if !expand || strings.IndexByte(line, '$') < 0 {
		return args, make([]string, len(args))
	}
	env := environment()
	var out []string
	for _, a := range args {
		if alone().MatchString(a) { // split at blanks into none or more arguments
			for _, w := range Words(env[a[1:]]) {
				out, from = append(out, w), append(from, a[1:])
			}
			continue
		}
		out, from = append(out, replaceBraced(a, env)), append(from, "")
	}
	return out, from
}

// The forms of a variable: $FOO as a whole argument, and ${FOO} anywhere.
var (
	alone  = pattern.Of(`^\$[A-Za-z_][A-Za-z0-9_]*$`)
	braced = pattern.Of(`\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
)

// replaceBraced replaces ${FOO} anywhere in an argument, and $$ by $.
func replaceBraced(s string, env map[string]string) string {
	return braced().ReplaceAllStringFunc(s, func(found string) string {
		if found == "$$" {
			return "$"
		}
		return env[found[2:len(found)-1]]
	})
}
