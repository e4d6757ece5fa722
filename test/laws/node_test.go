// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
	"github.com/gpuadm/gpuadm/test/specs"
)

// A machine is a recorded one, to be simulated as often as wanted.
type machine struct {
	name    string
	archive []byte
}

// machines are the recorded machines that gpuadm prepares, each with the program of NVIDIA's
// runtime: without it nothing is made the default. Bottlerocket and Talos it refuses; on a node of
// Container-Optimized OS or of the GPU Operator it has next to nothing to write.
func machines(t testing.TB) []machine {
	t.Helper()
	all := slices.DeleteFunc(archives(t), func(m machine) bool {
		return slices.Contains([]string{"eks-bottlerocket", "talos", "gke-cos", "operator-26.3", "operator-26.7"}, m.name)
	})
	for i, m := range all {
		if !bytes.Contains(m.archive, []byte("\n-- usr/bin/nvidia-container-runtime ")) {
			all[i].archive = slices.Concat(m.archive, []byte("\n-- usr/bin/nvidia-container-runtime mode=0755 --\n"))
		}
	}

	return all
}

// archives are the recorded machines, unchanged.
func archives(t testing.TB) []machine {
	t.Helper()
	names, err := filepath.Glob("../hosts/*.txtar")
	names = append(names, "kubeadm-8xh100.txtar")
	must.That(t, err == nil && len(names) >= 2, "cannot find the recorded machines: %d, %v", len(names), err)
	var all []machine
	for _, name := range names {
		data := must.Get(os.ReadFile(name))(t)
		all = append(all, machine{strings.TrimSuffix(filepath.Base(name), ".txtar"), data})
	}

	return all
}

func (m machine) boot(t testing.TB) *simhost.Node {
	t.Helper()
	n := unpacked(t, m)
	if bytes.Contains(m.archive, []byte("\n-- simulated-net/")) {
		ubuntu.Install(n)
	}
	return n
}

// unpackedMachines are nodes as their archives describe them, by the archive's text. Each boot gets
// a clone, which takes a fifth of the time.
var unpackedMachines sync.Map

func unpacked(t testing.TB, m machine) *simhost.Node {
	t.Helper()
	if n, ok := unpackedMachines.Load(string(m.archive)); ok {
		return n.(*simhost.Node).Clone()
	}
	n, err := simhost.New(m.archive)
	must.That(t, err == nil, "cannot simulate %s: %v", m.name, err)
	unpackedMachines.Store(string(m.archive), n)
	return n.Clone()
}

func engine(t testing.TB, text string) *converge.Engine {
	t.Helper()
	return &converge.Engine{
		Stages:  stages.Sequence(),
		Spec:    specs.Of(t, text),
		ThingOf: thingOf,
		Prune:   stages.Prune,
		Version: "test",
	}
}

// tree is the machine without what is ours alone, and with what its daemons run with. The folder of
// a question to a program lies in /run on a machine.
func tree(n *simhost.Node) string {
	return n.Tree(converge.Home, "/run", "/proc", "/tmp/scratch") + n.Units() + partitions(n)
}

// partitions is the state of the GPUs of a node.
func partitions(n *simhost.Node) string {
	d, err := n.Driver(context.Background())
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, g := range d.GPUs {
		fmt.Fprintf(&b, "GPU %s: %s\n", g.Address, mig.StateOf(g))
	}
	return b.String()
}

func apply(t testing.TB, n *simhost.Node, e *converge.Engine) converge.Result {
	t.Helper()
	res, err := e.Apply(context.Background(), n)
	must.That(t, err == nil || awaitsDriver(err), "cannot apply: %v", err)
	return res
}

// awaitsDriver reports whether an apply has made all but what it could not look at: most recorded
// machines have no driver that answers, and there partitions are in an unknown state.
func awaitsDriver(err error) bool { return trouble.IsUnknown(err) && trouble.Passes(err) }

func undo(t testing.TB, n *simhost.Node, e *converge.Engine, to string) converge.Result {
	t.Helper()
	res, err := e.Undo(context.Background(), n, to, nil)
	must.That(t, err == nil, "cannot undo: %v", err)
	return res
}

func plan(t testing.TB, n *simhost.Node, e *converge.Engine) converge.Plan {
	t.Helper()
	p, err := e.Plan(context.Background(), n.View())
	must.That(t, err == nil, "cannot plan: %v", err)
	return p
}

// stopsAt has an engine asked to stop at its first event of a kind.
func stopsAt(e *converge.Engine, what converge.What) *converge.Engine {
	stop := make(chan struct{})
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == what {
			close(stop)
			e.Tell = nil
		}
	}

	return e
}

// recordedAs is one of the machines, by its name.
func recordedAs(t testing.TB, name string) machine {
	t.Helper()
	all := machines(t)
	i := slices.IndexFunc(all, func(m machine) bool { return m.name == name })
	must.That(t, i >= 0, "no machine %s is recorded", name)
	return all[i]
}
