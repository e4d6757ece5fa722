// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Autoremove has an operator's apt take away what nothing needs any more.
func Autoremove(t testing.TB, n *simhost.Node) {
	t.Helper()
	must.Get(n.Do(t.Context(), "apt-get", "-y", "--purge", "autoremove"))(t)
}

// PurgeSpare purges what was installed automatically and is not on another machine. gpuadm holds a
// dependency until it undoes the run that has brought it, and apt's autoremove keeps held packages.
func PurgeSpare(t testing.TB, n *simhost.Node, other *files.Files) {
	t.Helper()
	is := (&machine{Files: other}).dpkg()
	n.Install("purge-spare", simhost.Program{Run: func(f *files.Files, _ []string) ([]byte, error) {
		d := (&machine{Files: f}).dpkg()
		for name, auto := range d.auto {
			if auto && is.installed(name) == "" {
				if err := d.purge(name); err != nil {
					return nil, err
				}
			}
		}
		return nil, d.save()
	}})
	must.Get(n.Do(t.Context(), "purge-spare"))(t)
}

// autoremove takes away what apt has installed for others that are gone: apt-get(8), and
// pkgDepCache::MarkRequired and MarkPackage in apt-pkg/depcache.cc. A held package stays, and so does
// what it needs: TestAutoremove has seen real apt keep both.
func (s *solution) autoremove() {
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
	for _, name := range there.names {
		if !s.d.auto[name] || s.d.held(name) {
			follow(name)
		}
	}

	for _, name := range there.names {
		if !needed[name] {
			s.remove[name] = true
		}
	}
}
