// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// counted is a machine that counts how often each file is read, and how often facts are gathered.
type counted struct {
	*simhost.Node
	mu       sync.Mutex
	reads    map[string]int
	gathered int
}

func count(n *simhost.Node) *counted { return &counted{Node: n, reads: map[string]int{}} }

func (c *counted) ReadFile(name string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads[name]++
	return c.Node.ReadFile(name)
}

// Stat counts a gathering by the folder that each asks for once, and no thing does.
func (c *counted) Stat(name string) (host.Info, error) {
	if name == "/lib/modules" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gathered++
	}
	return c.Node.Stat(name)
}

// once holds that nothing was read twice, and begins to count again.
func (c *counted) once(t *testing.T, what string, shared ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reads, "/proc/net/unix") // which kubelet listens: asked with the pods' devices, for each GPU
	for name, n := range c.reads {
		check.That(t, n <= 1 || (n <= 2 && slices.Contains(shared, name)), "%s: %s was read %d times", what, name, n)
	}
	clear(c.reads)
}

// readByTwo are the files that two things or notes of a stage read, each for itself.
var readByTwo = []string{
	"/etc/docker/daemon.json",                    // the file itself, and the daemon that has loaded it or not
	"/etc/machine-id",                            // the initramfs of each kernel
	"/var/lib/dpkg/status", "/var/lib/dpkg/arch", // the packages, and the sources that are for dpkg's architecture
}

// A gathering of facts reads each file once, and so does the look at a stage. A plan gathers facts
// once.
func TestPlanReadsOnce(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		for _, st := range e().Stages {
			n, one := count(m.boot(t)), e()
			began := false
			wants := st.Wants
			st.Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
				if !began {
					n.once(t, "gathering facts for stage "+st.Name)
				}
				began = true
				return wants(s, f)
			}

			one.Stages = []converge.Stage{st}
			must.Get(one.Plan(context.Background(), n))(t)
			n.once(t, "looking at stage "+st.Name, readByTwo...)
			check.That(t, n.gathered == 1, "stage %s: facts were gathered %d times", st.Name, n.gathered)
		}

		n := count(m.boot(t))
		_, err := e().Plan(context.Background(), n)
		check.That(t, err == nil && n.gathered == 1, "a plan gathers facts %d times: %v", n.gathered, err)
	})
}

// An apply gathers facts for its plan, and again for each stage that comes after a change.
func TestApplyGathersOnceAChange(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		n, eng := count(m.boot(t)), e()
		at, changed, want := "", false, 1
		for i, st := range eng.Stages {
			wants := st.Wants
			eng.Stages[i].Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				if changed && st.Name != at {
					changed, want = false, want+1
				}
				return wants(s, f)
			}
		}

		eng.Tell = func(ev converge.Event) {
			if ev.What == converge.Made {
				at, changed = ev.Stage, true
			}
		}

		_, err := eng.Apply(context.Background(), n)
		must.That(t, err == nil || awaitsDriver(err), "cannot apply: %v", err)
		check.That(t, n.gathered == want, "facts were gathered %d times, not %d", n.gathered, want)
	})
}

// A plan of the stage toolkit reads each CDI spec once, and says of the specs of others what it
// said before.
func TestCDISpecsAreReadOnce(t *testing.T) {
	archive := "-- sim.toml --\n" + a100s + "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n" +
		"\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- var/run/cdi/nvidia.yaml --\nkind: nvidia.com/gpu\ndevices: []\n" +
		"-- var/run/cdi/other.yaml --\nkind: nvidia.com/gpu\ndevices: []\n" +
		"-- var/run/cdi/plugin.json --\n{\"kind\": \"k8s.device-plugin.nvidia.com/gpu\", \"devices\": []}\n" +
		"-- etc/cdi/old.yaml --\nkind: nvidia.com/gpu\ndevices: []\n"
	n := count(machine{"cdi", []byte(archive)}.boot(t))
	e := engine(t, "[runtime]\n")
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
		return st.Name != "toolkit"
	})
	p := must.Get(e.Plan(t.Context(), n))(t)
	for _, name := range []string{"/var/run/cdi/nvidia.yaml", "/var/run/cdi/other.yaml", "/var/run/cdi/plugin.json", "/etc/cdi/old.yaml"} {
		check.That(t, n.reads[name] == 1, "%s was read %d times", name, n.reads[name])
	}
	notes := strings.Join(p.Notes, "\n")
	check.Says(t, notes, "/var/run/cdi/other.yaml is a CDI spec", "/etc/cdi/old.yaml is a CDI spec", "a device plugin gives containers GPUs by CDI here")
}
