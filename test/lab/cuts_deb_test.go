// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// brought is where the role keeps the file of gpuadm's package on a node.
const brought = "/var/cache/gpuadm/gpuadm.deb"

// TestLabCrashAnsibleDeb: the role installs gpuadm's own package on a node. dpkg is killed at some of
// its touches, and the node's power is cut then. The same play makes the node.
func TestLabCrashAnsibleDeb(t *testing.T) {
	t.Parallel()
	o := officeOf(t, 1, lab.Options{Disk: true})
	deb := must.Get(os.ReadFile("../../bin/packages/gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb"))(t)
	o.installRole()
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(deb) })
	go func() { _ = http.Serve(o.Listen("10.201.0.10:8080"), serve) }() //nolint:gosec // it ends with the test
	o.Put("/root/hosts.yaml", fmt.Sprintf(ansibleDebHost, sha256.Sum256(deb)), 0o644)

	c := &debCutting{node: o.nodes[0], office: o, cuts: map[string]int{}}
	c.Put(brought, string(deb), 0o755)
	c.ready()
	c.killed()
	c.powerless(lab.Synced)
	c.powerless(lab.Named)
	t.Logf("crash: %d cuts of %v: %v", c.cuts["kill"]+c.cuts["power"], installDeb, c.cuts)
}

// ansibleDebHost downloads gpuadm's package from the operator's machine.
const ansibleDebHost = `all:
  vars: {gpuadm_spec: "{{ lookup('file', '/root/node.toml') }}", gpuadm_pause: 1}
  hosts:
    n1: {gpuadm_source: "http://10.201.0.10:8080/gpuadm.deb", gpuadm_sha256: "%x"}
`

// installDeb is what the role has dpkg do.
var installDeb = []string{"dpkg", "--force-confdef", "--force-confold", "--install", brought}

// debCutting is a node on which dpkg is cut while it installs gpuadm's package.
type debCutting struct {
	node
	office  *office
	begin   lab.Picture
	after   standing // what the play makes without a cut
	touches int
	cuts    map[string]int
}

func (n node) withDeb() standing {
	n.t.Helper()
	return standing{
		files: n.Tree([]string{"/etc", "/usr", "/var/lib"}, append(slices.Clone(packageNoise), state)...),
		says: map[string]string{
			"packages":   n.packages(),
			"audit":      n.Must("dpkg", "--audit"),
			"boot unit":  n.Property(bootUnit, "UnitFileState"),
			"containerd": n.Property(daemon, "ActiveState"),
			"status":     fmt.Sprint(n.Exec("gpuadm", "status").Exit),
		},
	}
}

// ready runs the play once without a cut, and counts dpkg's touches.
func (c *debCutting) ready() {
	c.t.Helper()
	c.begin = c.Settled("begin")
	c.plays(c.node)
	c.after = c.node.withDeb()

	c.Insert(c.begin)
	r := c.Touches(func(lab.Touch) bool { c.touches++; return true }, installDeb...)
	must.That(c.t, r.Exit == 0, "%v, without a cut: %s", installDeb, r)
	c.t.Logf("%v makes %d touches", installDeb, c.touches)
}

// plays runs the role, and wants it to end well.
func (c *debCutting) plays(n node) {
	n.t.Helper()
	operator := node{c.office.In(n.t), n.t}
	r := operator.Exec(playLine()...)
	check.That(n.t, r.Exit == 0, "the play: %s", r)
}

// killed kills dpkg right before some of its touches.
func (c *debCutting) killed() {
	c.t.Helper()
	for _, at := range sample(c.t, c.touches, 3) {
		c.Insert(c.begin)
		var touch lab.Touch
		r := c.Touches(func(now lab.Touch) bool { touch = now; return now.N < at }, installDeb...)
		check.That(c.t, r.Exit == 137, "killed before touch %v: %s", touch, r)
		c.heals("kill", at, "dpkg killed before touch "+touch.String())
	}
}

// powerless boots what the disk holds when the power is cut right before some of dpkg's touches.
func (c *debCutting) powerless(kept lab.Kept) {
	c.t.Helper()
	c.Insert(c.begin)
	numbers := sample(c.t, c.touches, 2)
	pictures := map[int]lab.Picture{}
	touches := map[int]lab.Touch{}
	r := c.Touches(func(now lab.Touch) bool {
		if slices.Contains(numbers, now.N) {
			pictures[now.N] = c.Picture(fmt.Sprintf("cut-%d", now.N), kept)
			touches[now.N] = now
		}
		return true
	}, installDeb...)
	check.That(c.t, r.Exit == 0, "%v, while pictures were taken: %s", installDeb, r)

	for at, picture := range c.Distinct(pictures) {
		c.Insert(picture)
		c.heals("power", at, fmt.Sprintf("power cut before touch %v: the disk has %s", touches[at], kept))
		c.Drop(picture)
	}
}

// heals wants the same play to make the node that it makes without a cut.
func (c *debCutting) heals(kind string, at int, what string) {
	c.t.Helper()
	c.cuts[kind]++
	c.t.Run(fmt.Sprintf("%s-%d", kind, at), func(t *testing.T) {
		n := node{c.Host.In(t), t}
		must.That(t, n.answers(), "the machine does not come up")
		if c.cuts[kind]%2 == 0 { // what apt tells an operator to do then
			what += ", then dpkg --configure --pending"
			n.Exec("dpkg", "--configure", "--pending")
		}
		inDpkg := n.Exec("dpkg-query", "--show", "--showformat", packageLine, "gpuadm").Stdout
		t.Logf("%s; dpkg says %s", what, inDpkg)
		c.plays(n)
		check.None(t, c.after.differs(n.withDeb()), "the play does not make what it makes without a cut:")
	})
}
