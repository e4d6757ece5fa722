// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Autoremove has an operator's apt take away what nothing needs any more.
func Autoremove(t testing.TB, n *simhost.Node) {
	t.Helper()
	must.Get(n.Do(t.Context(), "apt-get", "-y", "--purge", "autoremove"))(t)
}

// autoremove takes away what apt has installed for others that are gone.
func (s *solution) autoremove() {
	for _, name := range s.unneeded() {
		s.remove[name] = true
	}
}

// unneeded is what apt has installed for others and nothing needs after the solution: apt-get(8), and
// pkgDepCache::MarkRequired and MarkPackage in apt-pkg/depcache.cc. A held package stays, and so does
// what it needs: TestAutoremove has seen real apt keep both. APT::Ignore-Hold makes a held one as any
// other, and what a command names counts as asked for: TestUnneeded.
func (s *solution) unneeded() (names []string) {
	needed := map[string]bool{}
	there := s.there()
	var follow func(name string)
	follow = func(name string) {
		if needed[name] {
			return
		}
		needed[name] = true
		for _, need := range there.named[name].needs {
			for _, one := range need {
				for _, given := range there.given[one.name] {
					if given.satisfies(one) {
						follow(given.Name)
					}
				}
			}
		}
	}

	heldStays := s.m.options["APT::Ignore-Hold"] != "true"
	for _, name := range there.names {
		_, isNew := s.install[name]
		auto := s.d.auto[name] || isNew && s.d.installed(name) == ""
		if !auto || s.asked[name] || heldStays && s.d.held(name) {
			follow(name)
		}
	}

	for _, name := range there.names {
		if !needed[name] {
			names = append(names, name)
		}
	}

	return names
}
