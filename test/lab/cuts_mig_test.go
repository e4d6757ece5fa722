// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// migBefore and migAfter are the specs between which partitions change: on one GPU the layout, on
// one the mode too, and one is a Hopper, which loses both at each boot.
const (
	migBefore = "format = 1\n[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 1, \"2g.10gb\" = 1, \"1g.5gb\" = 2 }\n" +
		"[[mig.gpu]]\ndevices = [2]\nlayout = { \"3g.40gb\" = 2 }\n"
	migAfter = "format = 1\n[[mig.gpu]]\ndevices = [0, 1]\nlayout = { \"1g.5gb\" = 7 }\n" +
		"[[mig.gpu]]\ndevices = [2]\nlayout = { \"1g.10gb\" = 7 }\n"
	migGPUs = "A100-40:2,H100-80"
)

// TestLabCrashMIG: a change of partitions is cut at its touches, and at its calls of the driver.
func TestLabCrashMIG(t *testing.T) {
	t.Parallel()
	c := crashMIG(t)
	c.prepare = func(n node) {
		n.Put(specFile, migBefore, 0o644)
		n.gpuadm(0, "apply")
		n.Put(specFile, migAfter, 0o644)
	}

	c.ready()

	c.killed(c.sample(2))
	c.powerless(lab.Synced, c.sample(2))
	c.powerless(lab.Named, c.sample(2))
	c.driverCalls()
	c.count()
}

// TestLabCrashMIGBoot: the power is cut during a change of partitions, and the boot unit continues
// it before kubelet starts.
func TestLabCrashMIGBoot(t *testing.T) {
	t.Parallel()
	c := crashMIG(t)
	c.boots = true
	c.Put("/etc/systemd/system/kubelet.service", kubelet, 0o644)
	c.Must("systemctl", "daemon-reload")
	c.Must("systemctl", "enable", "--now", "--quiet", "kubelet.service")
	c.prepare = func(n node) {
		n.Put(specFile, migBefore, 0o644)
		n.gpuadm(0, "apply", "--install")
		n.Put(specFile, migAfter, 0o644)
	}

	c.ready()

	c.powerless(lab.Synced, c.sample(2))
	c.powerless(lab.Named, c.sample(2))
	c.count()
}

// crashMIG is a machine with GPUs to partition, and a daemon that has to stop for a change of the
// mode.
func crashMIG(t *testing.T) *cutting {
	t.Helper()
	n := bootGPUsOf(t, lab.Options{
		Dist: "trixie",
		GPUs: 8,
		Disk: true,
	}, lab.OuterFile)
	n.Must("env", "FAKENVML_STATE="+lab.OuterFile, "fakenvml", "new", "--gpus", migGPUs)
	n.Must("ln", "-sf", lab.OuterFile, "/run/fakenvml.state")
	n.Put("/etc/systemd/system/"+persistenced, "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "--quiet", persistenced)
	n.Put(specFile, migAfter, 0o644)

	return &cutting{
		node:    n.node,
		folders: []string{"/etc", "/usr", "/var/lib"},
		command: []string{"gpuadm", "apply"},
		takes:   n.hopperForgets(),
		ask: func(n node) map[string]string {
			return map[string]string{
				"partitions": strings.Join(shapes(gpuNode{n}), "; "),
				persistenced: n.Property(persistenced, "ActiveState"),
			}
		},
	}
}

// hopper is the GPU that loses mode and partitions at each boot: the third of migGPUs.
const hopper = 2

// hopperForgets is what a power cut takes from the partitions: those of the Hopper, unless a run had
// begun to change them. Then the journal has them.
func (n gpuNode) hopperForgets() func(says map[string]string, but []string) map[string]string {
	address := n.dump().GPUs[hopper].Address
	return func(says map[string]string, but []string) map[string]string {
		if slices.Contains(but, address) {
			return says
		}
		all := strings.Split(says["partitions"], "; ")
		all[hopper] = "mode 0, next 0: "
		says["partitions"] = strings.Join(all, "; ")
		return says
	}
}

// driverCalls kills the command before and after calls by which it changes GPUs. Then the power is
// cut, too.
func (c *cutting) driverCalls() {
	c.t.Helper()
	gpus := gpuNode{c.node}
	c.restore(c.reinsert)
	before := gpus.dump().Mutations
	c.gpuadm(0, "apply")
	calls := gpus.dump().Mutations - before
	c.t.Logf("%v makes %d calls that change GPUs", c.command, calls)

	for _, at := range sample(c.t, 2*calls, 1) {
		cut := []string{"kill", "--nth", fmt.Sprint((at + 1) / 2)}
		if at%2 == 0 {
			cut = append(cut, "--late")
		}
		for _, then := range c.next() {
			c.restore(c.reinsert)
			gpus.fake(cut...)
			r := c.Exec(c.command...)
			gpus.fake("heal")
			check.That(c.t, r.Exit == 137, "%v at a call of the driver: %s", cut, r)

			cutHere := c.Picture("called", lab.Synced)
			run := c.runOf(c.Exec("cat", c.journalFile()).Stdout)
			c.judged("kill", at, then, fmt.Sprintf("%v at a call of the driver", cut), run)
			c.Insert(cutHere)
			c.judged("power", at, then, fmt.Sprintf("%v at a call of the driver, and the power is cut", cut), run)
			c.Drop(cutHere)
		}
	}
}

// shapes says how each GPU is partitioned, by the driver: "mode 1, next 1: 3g.20gb@4×1 …". The
// numbers of instances are the driver's own affair.
func shapes(n gpuNode) (all []string) {
	for _, g := range n.dump().GPUs {
		var list []string
		for _, i := range g.Instances {
			list = append(list, fmt.Sprintf("%s@%d×%d", i.Name, i.Start, len(i.Compute)))
		}
		slices.Sort(list)
		all = append(all, fmt.Sprintf("mode %d, next %d: %s", g.Mode, g.Pending, strings.Join(list, " ")))
	}
	return all
}
