// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// A host without a name server, with a proxy as its one way out: what is fetched, lists and
// packages, comes through it.
const (
	proxyAt  = "127.0.0.1:8077"
	vendorAt = "http://vendor.invalid"
)

func throughProxy(spec, proxy string) string {
	return spec + "[proxy]\nhttp = \"http://" + proxy + "\"\n"
}

// proxied wants URLs of the vendor's to have been asked of the proxy.
func proxied(t *testing.T, asked []string, names ...string) {
	t.Helper()
	for _, name := range names {
		check.That(t, slices.ContainsFunc(asked, func(url string) bool {
			return strings.HasPrefix(url, vendorAt+"/") && strings.Contains(url, name)
		}),
			"the proxy was not asked for %s: %v", name, asked)
	}
}

// TestLabDriverProxy: apt gets it all through the spec's proxy; a proxy that is not there is named
// as what is in the way, and nothing of it stays.
func TestLabDriverProxy(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	asked := repos.Serve(n.Host, proxyAt, repos.Good)
	spec := strings.Replace(n.spec("580.65.06", ""), "url = \""+repos.Mirror, "url = \""+vendorAt, 1)
	first := n.snapshot()
	r := n.wants(1, throughProxy(spec, "127.0.0.1:1"))
	says(t, r, "127.0.0.1:1", "check that the proxy runs", "[proxy] of node.toml", "undone")
	t.Log(r.Stderr)
	n.same(first)

	n.wants(0, throughProxy(spec, proxyAt))
	n.has("580.65.06")
	proxied(t, asked(), "InRelease", "nvidia-driver-cuda_")
	r = n.wants(1, throughProxy(strings.Replace(spec, "580.65.06", "580.95.05", 1), "127.0.0.1:1"))
	says(t, r, "127.0.0.1:1", "check that the proxy runs", "[proxy] of node.toml")
	t.Log(r.Stderr)
	n.has("580.65.06")
	n.gpuadm(0, "undo", "--to", "all")
	n.same(first)
}

// TestLabDnfProxy: and so does dnf.
func TestLabDnfProxy(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	const below = "/compute/cuda/repos/rhel9/x86_64"
	d := newDnfDriver(t)
	asked := repos.Serve(d.Host, proxyAt, repos.Good)
	ask := func(proxy string) {
		d.at("580.65.06", vendorAt+below, "auto")
		d.Put("/etc/gpuadm/node.toml", throughProxy(d.Get("/etc/gpuadm/node.toml"), proxy), 0o644)
	}

	ask("127.0.0.1:1")
	t.Log(d.apply(1, "127.0.0.1:1", "check that the proxy runs", "[proxy] of node.toml", "undone").Stderr)
	ask(proxyAt)
	d.apply(0)
	d.installed("580.65.06")
	proxied(t, asked(), "repomd.xml", "nvidia-driver-cuda-")
	check.Has(t, d.apply(0).Stdout, "Nothing to do.", "another apply:")
}
