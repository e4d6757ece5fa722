// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages"
)

// apt refuses all work while a package lacks a dependency, which an operator's dpkg --force-depends
// may have removed. apt-get check would say so, and takes half a second; each look at a machine
// needs the answer. So gpuadm reads it out of dpkg's database: deb-control(5), "Depends"; Debian
// Policy, 7.1 and 7.5.

// A relation is one alternative of a dependency: "libc6 (>= 2.34)", "python3:any".
type relation struct{ name, operator, version string }

// A provision is a name that a package provides, with a version or without.
type provision struct{ by, version string }

// dependencies answers what an installed package needs, and whether that is there.
type dependencies struct {
	d        *dpkg
	foreign  map[string][]string    // by bare name: packages of other architectures
	provided map[string][]provision // by the name that is provided
}

// markIncomplete marks the held packages that lack a dependency, or whose dependencies do. gpuadm
// holds all packages of the driver and the toolkit.
func (d *dpkg) markIncomplete() {
	var held []string
	for name, state := range d.packages {
		if state.Held && state.Installed() {
			held = append(held, name)
		}
	}

	if len(held) == 0 {
		return
	}

	graph := d.dependencies().graph(held)
	for _, name := range held {
		state := d.packages[name]
		if state.Broken == "" && graph.lacks(name, d.packages) {
			state.Broken = packages.Incomplete
			d.packages[name] = state
		}
	}
}

// dependencies lists the packages of other architectures, and the names that packages provide.
func (d *dpkg) dependencies() dependencies {
	all := dependencies{
		d:        d,
		foreign:  map[string][]string{},
		provided: map[string][]provision{},
	}
	for _, name := range slices.Sorted(maps.Keys(d.packages)) {
		if !d.packages[name].Installed() {
			continue
		}
		bare, _, foreign := strings.Cut(name, ":")
		if foreign {
			all.foreign[bare] = append(all.foreign[bare], name)
		}
		if !bytes.Contains(d.paragraphs[name], []byte("\nProvides:")) {
			continue
		}
		for one := range strings.SplitSeq(d.field(name, "Provides"), ",") {
			r := relationOf(one)
			all.provided[r.name] = append(all.provided[r.name], provision{name, r.version})
		}
	}

	return all
}

// field returns a field of a package's entry.
func (d *dpkg) field(name, field string) string {
	for key, value := range fields(d.paragraphs[name]) {
		if string(key) == field {
			return string(value)
		}
	}
	return ""
}

// A graph has what packages need: the packages that meet their dependencies, and the packages that
// lack one.
type graph struct {
	met     map[string][]string
	lacking map[string]bool
}

// graph visits the packages, all that these need, and so on.
func (all dependencies) graph(from []string) graph {
	found := graph{met: map[string][]string{}, lacking: map[string]bool{}}
	visit := slices.Clone(from)
	for len(visit) > 0 {
		name := visit[len(visit)-1]
		visit = visit[:len(visit)-1]
		if _, seen := found.met[name]; seen {
			continue
		}

		met, whole := all.of(name)
		found.met[name] = met
		found.lacking[name] = !whole
		visit = append(visit, met...)
	}

	return found
}

// lacks reports whether a package lacks a dependency, or another does that it needs. Held packages
// are asked for themselves.
func (g graph) lacks(name string, installed map[string]packages.State) bool {
	seen := map[string]bool{}
	visit := []string{name}
	for len(visit) > 0 {
		next := visit[len(visit)-1]
		visit = visit[:len(visit)-1]
		if seen[next] || next != name && installed[next].Held {
			continue
		}
		if g.lacking[next] {
			return true
		}
		seen[next] = true
		visit = append(visit, g.met[next]...)
	}

	return false
}

// of returns the packages that meet the dependencies of a package; whole is false if one is not
// met.
func (all dependencies) of(name string) (met []string, whole bool) {
	whole = true
	for clause := range all.clauses(name) {
		by := all.meeting(clause)
		if by == "" {
			whole = false
			continue
		}
		met = append(met, by)
	}

	return met, whole
}

// unmet returns the dependencies of a package that no installed package meets.
func (all dependencies) unmet(name string) (clauses []string) {
	for clause := range all.clauses(name) {
		if all.meeting(clause) == "" {
			clauses = append(clauses, clause)
		}
	}
	return clauses
}

// clauses goes through the dependencies of a package, each of which may have alternatives.
func (all dependencies) clauses(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, field := range []string{"Pre-Depends", "Depends"} {
			for clause := range strings.SplitSeq(all.d.field(name, field), ",") {
				clause = strings.TrimSpace(clause)
				if clause != "" && !yield(clause) {
					return
				}
			}
		}
	}
}

// meeting returns the package that meets a dependency, which may have alternatives; "" if none
// does.
func (all dependencies) meeting(clause string) string {
	for alternative := range strings.SplitSeq(clause, "|") {
		r := relationOf(alternative)
		for _, name := range append([]string{r.name}, all.foreign[r.name]...) {
			state := all.d.packages[name]
			if state.Installed() && r.allows(state.Version) {
				return name
			}
		}

		for _, p := range all.provided[r.name] {
			if r.operator == "" || p.version != "" && r.allows(p.version) {
				return p.by
			}
		}
	}
	return ""
}

// relationOf reads "NAME", "NAME:ARCH" and "NAME (OPERATOR VERSION)". The architecture does not
// count: dpkg had found that it fits when it installed the package, and a name is in few packages.
func relationOf(text string) relation {
	name, restriction, _ := strings.Cut(text, "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
	restriction, _, _ = strings.Cut(restriction, ")")
	restriction = strings.TrimSpace(restriction)
	version := strings.TrimLeft(restriction, "<>=")
	operator := strings.TrimSuffix(restriction, version)
	return relation{name, operator, strings.TrimSpace(version)}
}

// allows reports whether a version fits. A lone < or > is an old form of <= and >=.
func (r relation) allows(version string) bool {
	if r.operator == "" || version == r.version {
		return r.operator != "<<" && r.operator != ">>"
	}
	order := apt{}.Compare(version, r.version)
	switch r.operator {
	case "<<":
		return order < 0
	case "<=", "<":
		return order <= 0
	case "=":
		return order == 0
	case ">=", ">":
		return order >= 0
	case ">>":
		return order > 0
	}

	return true
}
