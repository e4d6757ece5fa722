// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// The crash lab: a command that changes a machine is cut at each of its touches, by a kill and by a
// power cut. What the machine is then, and after the next command, is asked of other programs than
// gpuadm: the disk is read from outside, the fake driver's own tool, dpkg and systemd are asked.

// standing is what a machine is, by other programs than gpuadm.
type standing struct {
	files lab.Tree
	says  map[string]string // by the question
}

// differs says what is different in another standing; "" if nothing is.
func (s standing) differs(other standing) string {
	var out strings.Builder
	for _, question := range slices.Sorted(maps.Keys(s.says)) {
		if other.says[question] != s.says[question] {
			fmt.Fprintf(&out, "%s:\n%s", question, otherLines(s.says[question], other.says[question]))
		}
	}

	return out.String() + s.files.Diff(other.files)
}

// dropTemporary leaves out gpuadm's temporary files, which the next run removes.
func (s standing) dropTemporary() {
	maps.DeleteFunc(s.files, func(name string, _ lab.Entry) bool {
		return strings.Contains(name, "/.gpuadm-")
	})
}

// otherLines are the lines of two texts that only one of them has.
func otherLines(was, is string) string {
	var out strings.Builder
	for line := range strings.Lines(was) {
		if !strings.Contains(is, strings.TrimSpace(line)) {
			fmt.Fprintf(&out, "- %s\n", strings.TrimSpace(line))
		}
	}

	for line := range strings.Lines(is) {
		if !strings.Contains(was, strings.TrimSpace(line)) {
			fmt.Fprintf(&out, "+ %s\n", strings.TrimSpace(line))
		}
	}

	return out.String()
}

// without is the standing without the answers to some questions.
func (s standing) without(questions []string) standing {
	s.says = maps.Clone(s.says)
	for _, question := range questions {
		delete(s.says, question)
	}
	return s
}

// cutting is a machine on which one command is cut again and again.
type cutting struct {
	node
	// folders are those that the command may change something in, and without those in them that
	// may differ.
	folders, without []string
	// ask asks the machine for what its files do not say.
	ask func(n node) map[string]string
	// prepare makes of the machine as it was before gpuadm the one on which the command is cut; nil
	// if they are the same.
	prepare func(n node)
	command []string
	// root is the image's root folder, if the command changes one.
	root string
	// from is the operator's machine, if the command runs there, and over the name by which it
	// reaches this one. The command is cut there, and the power here.
	from node
	over string
	// talks says that only touches count by which the command talks to this machine: the others change
	// the operator's machine alone, and a program such as Ansible makes thousands of them.
	talks bool
	// broken says that prepare breaks the machine that the command repairs: there was no gpuadm
	// before, and a boot may repair it, too.
	broken bool
	// lasting are questions whose answer no undo changes: a restart cannot be undone.
	lasting []string
	// sampled says that the command is one of many, and was chosen for this turn or part: all of its
	// touches belong to it.
	sampled bool
	// noUndo says that no undo concerns what the command makes: a mirror.
	noUndo bool
	makes  []string // the folders that it makes then
	// boots says that the machine has the boot unit, which continues the command after a power cut.
	boots bool
	// takes is what a power cut takes from the answers, but for things that a run had begun to
	// change; nil if it takes nothing: GPUs lose partitions.
	takes func(says map[string]string, but []string) map[string]string

	first, before, after standing // before gpuadm, before the command, after it
	journal              string   // gpuadm's, before the command
	begin                lab.Picture
	touches              int            // from the first, the run lock, on: nothing is changed before
	locked               int            // the number of touches before the run lock
	talked               []int          // the numbers of the touches that count, if only some do
	status               int            // the exit code of gpuadm status after the command
	cuts                 map[string]int // by the kind of cut
}

func (n node) standing(c *cutting) standing {
	n.t.Helper()
	return standing{
		files: n.Tree(c.folders, append(c.without, c.root+state)...),
		says:  c.ask(n),
	}
}

// ready runs the command once without a cut, and counts its touches. It leaves the machine as it is
// before the command.
func (c *cutting) ready() {
	c.t.Helper()
	c.cuts = map[string]int{}
	c.first = c.node.standing(c)
	if c.prepare != nil {
		c.prepare(c.node)
	}
	c.before = c.node.standing(c)
	if c.broken {
		c.first = c.before
	}
	c.begin = c.Settled("begin")

	r := c.touching(func(now lab.Touch) bool {
		if c.talks && now.What == lab.Socket {
			c.talked = append(c.talked, now.N)
		}
		if c.touches == 0 && now.What != lockFile {
			c.locked = now.N
			return true
		}
		c.touches++
		return true
	})
	must.That(c.t, r.Exit == 0, "%v, without a cut: %s", c.command, r)
	switch {
	case c.talks:
		c.touches = len(c.talked)
		c.locked = 0
	case c.touches == 0: // it takes no run lock
		c.touches = c.locked
		c.locked = 0
	}

	c.settles()
	c.after = c.node.standing(c)
	c.status = c.tells(c, "status").Exit
	changed := c.before.differs(c.after)
	must.That(c.t, changed != "", "%v changes nothing", c.command)
	c.t.Logf("%v makes %d touches, and changes\n%s", c.command, c.touches, changed)
}

// next are the commands that come after a cut.
func (c *cutting) next() []string {
	if c.noUndo {
		return []string{"apply"}
	}
	return []string{"apply", "undo"}
}

const lockFile = "/run/gpuadm.lock"

// journalFile is read to see whether the command had begun when it was cut, and for nothing else.
func (c *cutting) journalFile() string { return c.root + state + "/journal.jsonl" }

// tells runs gpuadm for the machine: on it, on its image, or from the operator's machine.
func (n node) tells(c *cutting, words ...string) lab.Result {
	n.t.Helper()
	switch {
	case c.over != "":
		return n.operator(c).Exec(append([]string{"gpuadm", "ssh", c.over, "--"}, words...)...)
	case c.root != "":
		words = append(words, "--root", c.root)
	}

	return n.Exec(append([]string{"gpuadm"}, words...)...)
}

// operator is the machine on which the command runs.
func (n node) operator(c *cutting) node {
	if c.over == "" {
		return n
	}
	return node{c.from.In(n.t), n.t}
}

// touching runs the command and calls before ahead of its touches.
func (c *cutting) touching(before func(lab.Touch) bool) lab.Result {
	c.t.Helper()
	return c.operator(c).Touches(before, c.command...)
}

// settles waits for what runs on here after the operator's command has ended.
func (c *cutting) settles() {
	c.t.Helper()
	if c.over == "" {
		return
	}
	const runs = "pgrep -x 'gpuadm|python3' || systemctl list-units --no-legend 'gpuadm-ssh-*' | grep -q ."
	must.That(c.t, eventually(func() bool {
		return c.Exec("sh", "-c", runs).Exit != 0
	}), "a run on the machine does not end")
}

// restore makes the machine as it is before the command, on disk, too. A boot may change it: GPUs
// lose partitions.
func (c *cutting) restore(again func()) {
	c.t.Helper()
	again()
	if c.prepare != nil {
		c.prepare(c.node)
	}
	differs := c.before.differs(c.node.standing(c))
	must.That(c.t, differs == "", "the machine is not as before the command:\n%s", differs)
	c.journal = c.Exec("cat", c.journalFile()).Stdout
	c.Sync()
}

func (c *cutting) reinsert() { c.Insert(c.begin) }

// sample are about n of the command's touches; all of them if the command itself is of the sample.
func (c *cutting) sample(n int) []int {
	c.t.Helper()
	var numbers []int
	if c.sampled && check.All() {
		numbers = must.Get(partOf(c.touches, "1/1"))(c.t)
	} else {
		numbers = sample(c.t, c.touches, n)
	}

	for i := range numbers {
		if c.talks {
			numbers[i] = c.talked[numbers[i]-1]
		} else {
			numbers[i] += c.locked
		}
	}

	return numbers
}

// partOf are the numbers from 1 to count that a part, such as 2/12, has of them: neighbours, whose
// pictures are often the same.
func partOf(count int, part string) (numbers []int, err error) {
	var which, of int
	if _, err := fmt.Sscanf(part, "%d/%d", &which, &of); err != nil || which < 1 || which > of {
		return nil, fmt.Errorf("GPUADM_PART=%s is not part, such as 2/12", part)
	}
	for at := (which-1)*count/of + 1; at <= which*count/of; at++ {
		numbers = append(numbers, at)
	}
	return numbers, nil
}

// sample are about n of count numbers from 1, others in each turn of CI; all of them if the whole
// lab runs, and a part of them if GPUADM_PART=2/12 asks for the second of twelve.
func sample(t *testing.T, count, n int) []int {
	t.Helper()
	if part := os.Getenv("GPUADM_PART"); part != "" {
		return must.Get(partOf(count, part))(t)
	}

	step := max(1, count/n)
	if check.All() {
		step = 1
	}
	turn, _ := strconv.Atoi(os.Getenv("GPUADM_TURN"))

	var numbers []int
	for at := 1 + (turn+step/2)%step; at <= count; at += step {
		numbers = append(numbers, at)
	}
	return numbers
}

// killed kills the command right before some of its touches.
func (c *cutting) killed(numbers []int) {
	c.t.Helper()
	again := c.reinsert
	for _, at := range numbers {
		for _, then := range c.next() {
			var touch lab.Touch
			var r lab.Result
			for range 5 { // a machine at work may be too slow to be looked at: nothing is changed then
				c.restore(again)
				r = c.touching(func(now lab.Touch) bool { touch = now; return now.N < at })
				c.settles()
				again = c.reinsert
				if r.Exit != couldNotLook {
					break
				}
			}

			if r.Exit == 0 { // it made fewer touches this time
				continue
			}
			check.That(c.t, r.Exit == 137, "killed before touch %v: %s", touch, r)
			run := c.runOf(c.Exec("cat", c.journalFile()).Stdout)
			if c.judged("kill", at, then, "killed before touch "+touch.String(), run) {
				again = func() {} // it is as before gpuadm
			}
		}
	}
}

// couldNotLook is gpuadm's exit code where it could not look at the machine, and may be asked again.
const couldNotLook = 75

// powerless boots what the disk holds when the power is cut right before some of the touches, once
// for each of the commands that come next. Pictures of the same machine are booted once.
func (c *cutting) powerless(kept lab.Kept, numbers []int) {
	c.t.Helper()
	c.restore(c.reinsert)
	pictures := map[int]lab.Picture{}
	touches := map[int]lab.Touch{}
	r := c.touching(func(now lab.Touch) bool {
		if slices.Contains(numbers, now.N) {
			pictures[now.N] = c.Picture(fmt.Sprintf("cut-%d", now.N), kept)
			touches[now.N] = now
		}
		return true
	})
	check.That(c.t, r.Exit == 0, "%v, while pictures were taken: %s", c.command, r)

	taken := len(pictures)
	pictures = c.Distinct(pictures)
	c.t.Logf("of %d pictures with %s %d differ", taken, kept, len(pictures))
	c.cuts["power, of the same disk as another"] += taken - len(pictures)
	for _, at := range slices.Sorted(maps.Keys(pictures)) {
		what := fmt.Sprintf("power cut before touch %v: the disk has %s", touches[at], kept)
		run := c.runOf(c.File(pictures[at], c.journalFile()))
		for _, then := range c.next() {
			c.Insert(pictures[at])
			c.judged("power", at, then, what, run)
		}

		c.Drop(pictures[at])
	}
}

// cutRun is how far the journal says that the command came.
type cutRun struct {
	made  []string // the things of which it had begun a change, by name
	ended bool
}

// runOf finds the command's run in a journal. A line that the cut has torn, also one that lacks its
// newline alone, says nothing.
func (c *cutting) runOf(journal string) (run cutRun) {
	for line := range strings.Lines(journal) {
		var r converge.Record
		isWhole := strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &r) == nil
		if !isWhole || strings.Contains(c.journal, fmt.Sprintf("%q:%q", "run", r.Run)) {
			continue
		}
		if r.What == "make" {
			run.made = append(run.made, r.Change.Name)
		}
		run.ended = run.ended || r.What == "end"
	}
	return run
}

// hadFound is the machine that the command's run found, to which its undo leads: what a power cut
// took before the run had begun to change it, the run that continues has found so.
func (c *cutting) hadFound(kind string, run cutRun) standing {
	if kind != "power" || c.takes == nil {
		return c.before
	}
	found := c.before
	found.says = c.takes(maps.Clone(found.says), run.made)
	return found
}

// judged wants a machine that was cut to come out well: in the end it is as before gpuadm.
func (c *cutting) judged(kind string, at int, then, what string, run cutRun) (well bool) {
	c.t.Helper()
	c.cuts[kind]++
	return c.t.Run(fmt.Sprintf("%s-%d-%s", kind, at, then), func(t *testing.T) {
		t.Log(what + ", then " + then)
		n := node{c.Host.In(t), t}
		if !c.broken {
			must.That(t, n.answers(), "the machine does not come up")
		}
		found := n.honest(c)
		if c.over != "" { // the next session removes the copy that a power cut has left
			found.says["copies"] = ""
		}
		found.dropTemporary()
		if kind == "power" && c.boots {
			n.continued(c)
		}
		if then == "apply" || c.noUndo {
			n.applied(c)
		}

		if c.noUndo {
			n.Must(append([]string{"rm", "-rf"}, c.makes...)...)
			return
		}
		// By a boot, so that another run makes it again: this one found less.
		lost := run.ended && (c.boots || c.after.differs(found) != "")
		switch {
		case len(run.made) > 0 && !lost:
			n.undone(c, c.hadFound(kind, run))
		case then == "apply" && !c.boots:
			n.undone(c, found)
		}

		n.allUndone(c)
	})
}

// honest wants status and doctor not to say fine of a machine that is not.
func (n node) honest(c *cutting) (is standing) {
	n.t.Helper()
	is = n.standing(c)
	missing := c.after.differs(is)
	if missing == "" || c.noUndo { // a mirror is no state of the machine
		return is
	}
	if r := n.tells(c, "status"); r.Exit == 0 && c.status == 0 {
		n.t.Errorf("status says fine: %s\nThe machine lacks:\n%s", r, missing)
	}
	changed := c.before.differs(is)
	if changed == "" && !c.broken || c.root != "" { // doctor is for machines that run
		return is
	}
	if r := n.tells(c, "doctor"); r.Exit == 0 {
		n.t.Errorf("doctor says fine: %s\nThe machine is not as it was:\n%s\nand not as it shall be:\n%s",
			r, changed, missing)
	}
	return is
}

// continued wants the boot unit to have made what was cut: kubelet runs on nothing less.
func (n node) continued(c *cutting) {
	n.t.Helper()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	check.None(n.t, c.after.differs(n.standing(c)), "kubelet runs, and the boot unit has not made all:\n%s", n.Journal(bootUnit))
}

// applied wants the command, once more, to end in the machine that it makes without a cut.
func (n node) applied(c *cutting) {
	n.t.Helper()
	r := n.operator(c).Exec(c.command...)
	repaired := c.broken && (r.Exit == 1 || r.Exit == 75) && strings.Contains(r.Stderr, "is not found on this machine")
	check.That(n.t, r.Exit == 0 || repaired, "%v once more: %s", c.command, r)
	is := n.standing(c)
	if repaired { // a repair that is refused is no run
		is.dropTemporary()
	}
	check.None(n.t, c.after.differs(is), "%v once more does not make what it makes without a cut:\n%s", c.command, r)
	status := n.tells(c, "status")
	check.That(n.t, status.Exit == c.status, "status, want exit %d: %s", c.status, status)
}

// undone wants undo to end in the machine that the command found.
func (n node) undone(c *cutting, found standing) {
	n.t.Helper()
	r := n.tells(c, "undo", "--yes")
	check.That(n.t, r.Exit == 0, "undo: %s", r)
	is := n.standing(c).without(c.lasting)
	check.None(n.t, found.without(c.lasting).differs(is), "undo does not end in the machine that the command found:\n%s", r)
}

// allUndone wants undo of all to end in the machine from before gpuadm.
func (n node) allUndone(c *cutting) {
	n.t.Helper()
	r := n.tells(c, "undo", "--to", "all", "--yes")
	check.That(n.t, r.Exit == 0, "undo of all: %s", r)
	if c.broken { // what a boot has repaired stays so
		check.List(n.t, n.leftBehind(c), nil, "left behind:")
		n.Must("rm", "-rf", state)
		return
	}

	is := n.standing(c).without(c.lasting)
	check.None(n.t, c.first.without(c.lasting).differs(is), "undo of all does not end in the machine from before gpuadm:\n%s", r)
	check.List(n.t, n.leftBehind(c), nil, "left behind:")
	n.Must("rm", "-rf", c.root+state)
}

// leftBehind are the files of gpuadm's, but for those that are not undo's.
func (n node) leftBehind(c *cutting) []string {
	n.t.Helper()
	return slices.DeleteFunc(n.leftoversIn(c.root), func(name string) bool {
		return slices.Contains(c.without, name)
	})
}

// count says how many cuts were tried.
func (c *cutting) count() {
	c.t.Helper()
	all := 0
	for _, kind := range slices.Sorted(maps.Keys(c.cuts)) {
		all += c.cuts[kind]
		c.t.Logf("crash: %d cuts: %s", c.cuts[kind], kind)
	}

	c.t.Logf("crash: %d cuts of %v", all, c.command)
}
