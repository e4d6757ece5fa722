// SPDX-License-Identifier: Apache-2.0

// Package pairs asks what two specs do to each other: for each ordered pair (A, B) of a table, on a
// simulated Ubuntu, A is applied, then B, B fails in its worst place, B is undone, all is undone,
// and another process changes things in between. The end states are those of laws 9 and 10
// (ARCHITECTURE.md). Each command that gpuadm prints on the way is run on a clone of that machine.
package pairs

import (
	"embed"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

//go:embed machine.txtar
var archives embed.FS

// Kernel is the one that runs, and has headers.
const Kernel = "6.8.0-88-generic"

// Machine is a node as Ubuntu's packages leave it: two A30, containerd and Docker, no driver. What
// other texts replace is given by pairs.
func Machine(t testing.TB, other ...string) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte(strings.NewReplacer(other...).Replace(string(Archive(t))))))(t)
	ubuntu.Install(n)
	return n
}

// Archive is the machine's.
func Archive(t testing.TB) []byte {
	return must.Get(archives.ReadFile("machine.txtar"))(t)
}

// Write is what another process does to the machine.
func Write(t testing.TB, n *simhost.Node, name, text string) {
	t.Helper()
	for i, c := range name {
		if c == '/' && i > 0 {
			_ = n.Mkdir(name[:i], host.Attr{Mode: 0o755})
		}
	}

	must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
}

// serves says which edition a repository of the simulated net serves from now on.
func serves(t testing.TB, n *simhost.Node, at, edition string) {
	t.Helper()
	Write(t, n, "/simulated-net/"+at+"/serves", edition+" /srv/ed25519.asc /srv/rsa2048.gpg\n")
}

// Tree is the machine as an operator sees it: without gpuadm's own folder, the packagers' caches,
// the net and the time that a list was read.
func Tree(n *simhost.Node) string {
	var b strings.Builder
	for line := range strings.Lines(n.Tree("/var/lib/gpuadm", "/run", "/proc", "/var/lib/apt", "/var/lib/dpkg", "/var/cache", "/simulated-net", "/boot", "/etc/gpuadm", "/sys/module/nvidia_peermem")) {
		if !strings.Contains(line, " folder 0755 0:0") || strings.HasPrefix(line, "/etc/") { // packages and kernel leave empty ones
			b.WriteString(line)
		}
	}

	return b.String() + n.Units() + ubuntu.Packages(n.Files)
}
