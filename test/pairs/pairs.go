// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// Said is what gpuadm answered, and the command lines of its own that it printed.
type Said struct {
	Code      int
	Out, Talk string
	Told      []string
}

// A CLI runs gpuadm on a node as root types it.
type CLI func(t testing.TB, n *simhost.Node, args ...string) Said

// applied is a machine on which one spec was applied.
type applied struct {
	*simhost.Node
	tree, module string // module is the version of the driver that is loaded
}

type judge struct {
	cli   CLI
	first string // the machine before gpuadm
	base  *simhost.Node
	of    []applied // by spec
}

// Test judges pairs of specs: all of them in a nightly run, else some for each spec, and with
// -short few.
func Test(t *testing.T, cli CLI) {
	j := judge{cli: cli, base: Machine(t)}
	j.first = Tree(j.base)
	for _, spec := range Specs {
		n := j.base.Clone()
		j.wants(t, n, spec.Text)
		j.run(t, n, 0, "apply")
		again := j.run(t, n, 0, "apply")
		check.That(t, strings.HasPrefix(again.Out, "Nothing to do"), "%s: the second apply says %s%s", spec.Name, again.Out, again.Talk)
		version, _ := n.ReadFile("/sys/module/nvidia/version")
		j.of = append(j.of, applied{n, Tree(n), strings.TrimSpace(string(version))})
	}

	for _, apart := range distances(t) {
		for a := range Specs {
			if b := (a + apart) % len(Specs); !testing.Short() || a%4 == 0 {
				t.Run(Specs[a].Name+" then "+Specs[b].Name, func(t *testing.T) {
					t.Parallel()
					j.pair(t, a, b)
				})
			}
		}
	}
}

// distances are how far apart in the table the specs of a pair are.
func distances(t *testing.T) (all []int) {
	if !check.All() {
		return []int{1, 17}
	}
	for i := range Specs[1:] {
		all = append(all, i+1)
	}
	return all
}

func (j *judge) wants(t testing.TB, n *simhost.Node, text string) {
	t.Helper()
	Write(t, n, "/etc/gpuadm/node.toml", "format = 1\n"+text)
}

// run runs gpuadm and wants an exit code. What it prints to be typed is tried on clones.
func (j *judge) run(t testing.TB, n *simhost.Node, code int, args ...string) Said {
	t.Helper()
	s := j.do(t, n, args...)
	must.That(t, s.Code == code, "gpuadm %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), s.Code, code, s.Out, s.Talk)
	return s
}

// same compares with a tree, and shows the first lines that differ.
func same(t testing.TB, what, want string, n *simhost.Node) {
	t.Helper()
	was, is := strings.Split(want, "\n"), strings.Split(Tree(n), "\n")
	var lines []string
	for _, side := range []struct {
		sign     string
		of, from []string
	}{{"-", was, is}, {"+", is, was}} {
		for _, line := range side.of {
			if !slices.Contains(side.from, line) {
				lines = append(lines, side.sign+" "+line[:min(len(line), 150)])
			}
		}
	}

	if len(lines) > 0 {
		t.Errorf("%s (-want +got):\n%s", what, strings.Join(trouble.Few(lines, 16), "\n"))
	}
}

// do runs gpuadm, and allows what a refusal says that it needs.
func (j *judge) do(t testing.TB, n *simhost.Node, args ...string) Said {
	t.Helper()
	s := j.cli(t, n, args...)
	if s.Code == 1 && strings.Contains(s.Talk, "run again with --allow lose-partitions") {
		s = j.cli(t, n, append(args, "--allow", "lose-partitions")...)
	}
	return s
}

func (j *judge) undo(t testing.TB, n *simhost.Node, args ...string) Said {
	t.Helper()
	s := j.do(t, n, args...)
	check.That(t, s.Code == 0, "gpuadm %s: exit code %d\n%s%s", strings.Join(args, " "), s.Code, s.Out, s.Talk)
	return s
}

// pair judges one pair.
func (j *judge) pair(t *testing.T, a, b int) {
	n := j.of[a].Clone()
	j.wants(t, n, Specs[b].Text)
	before := n.Clone()
	s := j.do(t, n, "apply")
	if s.Code != 0 {
		t.Errorf("refused: %s%s", s.Out, s.Talk)
		same(t, "refused", j.of[a].tree, n)
		return
	}

	if within(Specs[a].Text, Specs[b].Text) && !j.stays(a, b) {
		alone := n.Clone()
		ubuntu.Autoremove(t, alone) // what gpuadm did not hold
		same(t, "law 9: one after the other", j.of[b].tree, alone)
	}

	again := j.run(t, n, 0, "apply")
	check.That(t, strings.HasPrefix(again.Out, "Nothing to do"), "the second apply says %s%s", again.Out, again.Talk)
	j.follow(t, n, s, j.of[a].tree)
	j.restarts(t, n.Clone())
	all := n.Clone()
	j.undo(t, all, "undo", "--to", "all")
	same(t, "all is undone", j.first, all)
	t.Run("fails", func(t *testing.T) { j.fails(t, a, b, before) })
	t.Run("meanwhile", func(t *testing.T) { j.meanwhile(t, a, b) })
}

// restarts has the engine's files touched: the next run restarts it alone, and the command that it
// prints undoes no other run.
func (j *judge) restarts(t *testing.T, n *simhost.Node) {
	before := Tree(n)
	for _, name := range []string{"/etc/containerd/config.toml", "/etc/docker/daemon.json"} {
		if data, err := n.ReadFile(name); err == nil {
			Write(t, n, name, string(data))
		}
	}

	j.follow(t, n, j.run(t, n, 0, "apply"), before)
}

// stays says that what A installed is what B asks for too, and B leaves it: the version, or modules
// in it that were built once.
func (j *judge) stays(a, b int) bool {
	version, _, _ := strings.Cut(j.of[a].module, " ")
	if open := openVersion.FindStringSubmatch(Specs[b].Text); open != nil {
		return strings.HasPrefix(version, open[1]+".")
	}
	return strings.Contains(Specs[a].Text, `build = "shared"`) && strings.Contains(Specs[b].Text, `version = "`+version+`"`)
}

var openVersion = regexp.MustCompile(`(?m)^version = "(\d+)"$`)

// sections are those that a spec has.
var sections = regexp.MustCompile(`(?m)^\[+(\w+)`)

// within says whether every section of one spec is one of the other's: what a removed section made
// is released, and stays.
func within(a, b string) bool {
	for _, m := range sections.FindAllStringSubmatch(a, -1) {
		if !has(b, m[1]) {
			return false
		}
	}
	return true
}

// follow types each command that was printed. "To undo" ends in the machine from before the run.
func (j *judge) follow(t *testing.T, n *simhost.Node, s Said, before string) {
	t.Helper()
	for _, line := range s.Told {
		args := strings.Fields(strings.TrimPrefix(line, "sudo "))[1:]
		c := n.Clone()
		now := Tree(c)
		if args[0] == "undo" {
			j.undo(t, c, args...)
			same(t, line, before, c)
			continue
		}

		said := j.cli(t, c, args...)
		check.That(t, said.Code == 0 || said.Code == 3, "%s: exit code %d\n%s%s", line, said.Code, said.Out, said.Talk)
		same(t, line, now, c)
	}
}

// fails has B fail in its worst place: its modules do not build, or its engine does not start with
// what gpuadm wrote. Then the machine is as A left it, at once or by the command that is printed,
// and B can be applied once the cause is gone.
func (j *judge) fails(t *testing.T, a, b int, n *simhost.Node) {
	var heal func()
	text, pattern, unit := Specs[b].Text, `nvidia-two`, "containerd.service"
	switch {
	case strings.Contains(text, `build = "shared"`): // nothing is built, so that no build can fail
		return
	case has(text, "driver") && j.of[b].module != j.of[a].module && !j.stays(a, b):
		Write(t, n, "/simulated-net/nobuild", j.of[b].module+"\n")
		heal = func() { must.OK(t, n.Remove("/simulated-net/nobuild")) }
	case strings.Contains(text, asDefault) || strings.Contains(text, docker):
		pattern = `"?default[_-]runtime(_name)?"? ?[=:] "nvidia"`
		if strings.Contains(text, docker) {
			unit = "docker.service"
		}
		fallthrough
	case strings.Contains(text, other):
		if config, _ := n.ReadFile(map[string]string{"docker.service": "/etc/docker/daemon.json"}[unit]); regexp.MustCompile(pattern).Match(config) {
			return
		}
		if config, _ := n.ReadFile("/etc/containerd/config.toml"); unit == "containerd.service" && regexp.MustCompile(pattern).Match(config) {
			return
		}
		must.OK(t, n.Refuse(unit, pattern))
		heal = func() { must.OK(t, n.Refuse(unit, "^never$")) }
	default:
		return
	}

	s := j.run(t, n, 1, "apply")
	if Tree(n) != j.of[a].tree {
		undone := false
		for _, line := range s.Told {
			if args := strings.Fields(line); !undone && args[2] == "undo" {
				c := n.Clone()
				j.undo(t, c, args[2:]...)
				same(t, "failed, and undone as printed", j.of[a].tree, c)
				undone = true
			}
		}

		if !undone {
			t.Logf("gpuadm says:\n%s%s", s.Out, s.Talk)
			same(t, "failed", j.of[a].tree, n)
		}
	}

	heal()
	j.run(t, n, 0, "apply")
	if within(Specs[a].Text, text) {
		alone := n.Clone()
		ubuntu.Autoremove(t, alone)
		same(t, "applied once the cause was gone", j.of[b].tree, alone)
	}

	j.undo(t, n, "undo", "--to", "all")
	same(t, "all is undone after a failure", j.first, n)
}

// changes are what another process does between the two, and the repositories too.
var changes = []struct {
	name string
	make func(t testing.TB, n *simhost.Node)
}{
	{name: "the repository drops its older versions", make: func(t testing.TB, n *simhost.Node) { serves(t, n, "nvidia.example/ubuntu2404", "mirror") }},
	{name: "an operator runs apt-get autoremove", make: func(t testing.TB, n *simhost.Node) { ubuntu.Autoremove(t, n) }},
	{name: "containerd's configuration is edited", make: func(t testing.TB, n *simhost.Node) {
		const name = "/etc/containerd/config.toml"
		Write(t, n, name, string(must.Get(n.ReadFile(name))(t))+"\n[debug]\n  level = \"warn\"\n")
		must.OK(t, n.SetUnit(t.Context(), "containerd.service", host.UnitChange{Job: "restart"}))
	}},
	{name: "another list comes", make: func(t testing.TB, n *simhost.Node) {
		Write(t, n, "/etc/apt/sources.list.d/other.list", "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://archive.example/ubuntu noble universe\n")
	}},
	{name: "the machine reboots", make: func(_ testing.TB, n *simhost.Node) { n.Reboot() }},
}

// meanwhile has something else change between A and B: undo takes gpuadm's part out, and leaves the
// other.
func (j *judge) meanwhile(t *testing.T, a, b int) {
	change := changes[(a+b)%len(changes)]
	n, alone := j.of[a].Clone(), j.base.Clone()
	change.make(t, n)
	change.make(t, alone)
	j.wants(t, n, Specs[b].Text)
	j.wants(t, alone, Specs[b].Text)
	want := Tree(alone)
	if s := j.do(t, n, "apply"); s.Code != 0 {
		check.That(t, j.cli(t, alone.Clone(), "apply").Code != 0, "%s: refused, and not on a fresh machine:\n%s%s", change.name, s.Out, s.Talk)
	}
	j.undo(t, n, "undo", "--to", "all")
	same(t, change.name+": all is undone", want, n)
}
