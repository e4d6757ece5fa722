// SPDX-License-Identifier: Apache-2.0

package recall_test

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// said is what the tests read out of a file.
type said struct{ Text string }

// a machine counts how often its file is read.
type machine struct {
	*simhost.Node
	reads int
}

const file = "/usr/bin/containerd"

func start(t *testing.T) *machine {
	t.Helper()
	return &machine{Node: must.Get(simhost.New([]byte("-- usr/bin/containerd --\n1.7.24\n-- run/lock --\n")))(t)}
}

func (m *machine) change(t *testing.T, text string) {
	t.Helper()
	must.OK(t, m.WriteFile(file, []byte(text), host.Attr{Mode: 0o755}))
}

// ask reads the file through a memory, and counts the reads.
func (m *machine) ask(t *testing.T, memory *recall.Memory) (text string, reads int) {
	t.Helper()
	before := m.reads
	found, err := recall.Once(memory, m.Node, file, func(v host.View) (said, error) {
		m.reads++
		text, err := v.ReadFile(file)
		return said{string(text)}, err
	})
	must.OK(t, err)
	return found.Text, m.reads - before
}

func TestOnceReadsAFileOnce(t *testing.T) {
	m, memory := start(t), new(recall.Memory)

	_, first := m.ask(t, memory)
	text, second := m.ask(t, memory)
	check.That(t, first == 1 && second == 0 && text == "1.7.24\n", "read %d and %d times: %q", first, second, text)
}

func TestOnceReadsAChangedFileAgain(t *testing.T) {
	m, memory := start(t), new(recall.Memory)
	m.ask(t, memory)

	m.change(t, "2.1.10\n") // of the same size
	text, reads := m.ask(t, memory)
	check.That(t, reads == 1 && text == "2.1.10\n", "a change of the same size: %d reads, %q", reads, text)

	m.change(t, "of another size\n")
	text, reads = m.ask(t, memory)
	check.That(t, reads == 1 && text == "of another size\n", "another size: %d reads, %q", reads, text)
}

func TestOnceRemembersNoError(t *testing.T) {
	m, memory := start(t), new(recall.Memory)
	fails := func(host.View) (said, error) { return said{}, errors.New("it is torn") }

	_, err := recall.Once(memory, m.Node, file, fails)
	check.That(t, err != nil, "no error")
	text, reads := m.ask(t, memory)
	check.That(t, reads == 1 && text == "1.7.24\n", "after a failure: %d reads, %q", reads, text)

	must.OK(t, m.Remove(file))
	_, err = recall.Once(memory, m.Node, file, fails)
	check.That(t, err != nil, "a file that is gone is remembered")
}

// TestAbout: a file that is asked two questions keeps both answers, also for the next run.
func TestAbout(t *testing.T) {
	m, memory := start(t), new(recall.Memory)
	ask := func(memory *recall.Memory, about string) (answer string, reads int) {
		t.Helper()
		before := m.reads
		answer, err := recall.About(memory, m.Node, file, about, func(host.View) (string, error) {
			m.reads++
			return "answer to " + about, nil
		})
		must.OK(t, err)
		return answer, m.reads - before
	}

	ask(memory, "first")
	answer, reads := ask(memory, "second")
	check.That(t, reads == 1 && answer == "answer to second", "another question: %d reads, %q", reads, answer)
	memory.Keep(m.Node)

	memory = new(recall.Memory)
	for _, about := range []string{"first", "second"} {
		answer, reads := ask(memory, about)
		isKept := reads == 0 && answer == "answer to "+about
		check.That(t, isKept, "the next run, %s: %d reads, %q", about, reads, answer)
	}
}

func TestNoMemory(t *testing.T) {
	m := start(t)
	m.ask(t, nil)
	_, reads := m.ask(t, nil)
	check.Equal(t, reads, 1, "reads without a memory:")
}

func TestKeepForTheNextRun(t *testing.T) {
	m, memory := start(t), new(recall.Memory)
	m.ask(t, memory)
	memory.Keep(m.Node)

	text, reads := m.ask(t, new(recall.Memory))
	check.That(t, reads == 0 && text == "1.7.24\n", "the next run: %d reads, %q", reads, text)

	must.OK(t, m.WriteFile(recall.Record, []byte(`[{"path":"`), host.Attr{Mode: 0o644}))
	_, reads = m.ask(t, new(recall.Memory))
	check.Equal(t, reads, 1, "reads with a torn record:")

	memory = new(recall.Memory)
	m.ask(t, memory)
	memory.Keep(m.Node)
	must.OK(t, m.SetAttr(recall.Record, host.Attr{Mode: 0o666}))
	_, reads = m.ask(t, new(recall.Memory))
	check.Equal(t, reads, 1, "reads with a record that every user can write:")
}
