// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

const fakeState = "/var/lib/fakenvml.state"

// gpuNode is a host with fake GPUs and a real gpuadm: it loads libnvidia-ml.so.1 as on any machine.
type gpuNode struct {
	node
}

// bootGPUs boots a host with the fake driver, for which a boot is one, too. Its state is where the
// library looks by itself, since gpuadm hands no environment on.
func bootGPUs(t *testing.T) gpuNode {
	t.Helper()
	return bootGPUsOf(t, lab.Options{Dist: "trixie", GPUs: 8}, fakeState)
}

// bootGPUsOf boots a host whose fake driver keeps its state in a file that a boot does not empty.
func bootGPUsOf(t *testing.T, o lab.Options, kept string) gpuNode {
	t.Helper()
	parts := fakenvml.Build(t)
	n := gpuNode{node{lab.Boot(t, o), t}}
	for from, to := range map[string]string{
		parts.Library:   "/usr/lib/x86_64-linux-gnu/" + fakenvml.Soname,
		parts.Tool:      "/usr/local/bin/fakenvml",
		parts.NvidiaSMI: "/usr/bin/nvidia-smi",
	} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}

	n.Put("/etc/systemd/system/fake-gpus.service", `[Unit]
Description=the fake GPUs see a boot
ConditionPathExists=`+kept+`
DefaultDependencies=no
After=local-fs.target
[Service]
Type=oneshot
ExecStart=/bin/ln -sf `+kept+` /run/fakenvml.state
ExecStart=/usr/local/bin/fakenvml reboot
[Install]
WantedBy=sysinit.target
`, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "fake-gpus.service")
	return n
}

func (n gpuNode) fake(args ...string) string {
	n.t.Helper()
	return n.Must(append([]string{"fakenvml"}, args...)...)
}

// with starts a scenario: other GPUs, and a gpuadm that was never here.
func (n gpuNode) with(t *testing.T, gpus string) gpuNode {
	t.Helper()
	n.t = t
	n.Must("rm", "-rf", state, "/run/gpuadm-paused", fakeState)
	n.Must("env", "FAKENVML_STATE="+fakeState, "fakenvml", "new", "--gpus", gpus)
	n.Must("ln", "-sf", fakeState, "/run/fakenvml.state")
	return n
}

func (n gpuNode) dump() (s fakenvml.State) {
	n.t.Helper()
	must.OK(n.t, json.Unmarshal([]byte(n.fake("dump")), &s))
	return s
}

// wants writes the spec and runs gpuadm on it.
func (n gpuNode) wants(exit int, mig string, args ...string) lab.Result {
	n.t.Helper()
	n.Put(specFile, "format = 1\n"+mig, 0o644)
	if len(args) == 0 {
		args = []string{"apply", "mig"}
	}
	r := n.Exec(append([]string{"gpuadm"}, args...)...)
	check.That(n.t, r.Exit == exit, "gpuadm %s for\n%s\nwant exit %d: %s", strings.Join(args, " "), mig, exit, r)
	return r
}

// says is how one GPU is partitioned, "3g.20gb@4 1g.5gb@0", and its instances' ids.
func geometry(g fakenvml.GPU) string {
	var list []string
	for _, i := range g.Instances {
		list = append(list, fmt.Sprintf("%s@%d#%d×%d", i.Name, i.Start, i.ID, len(i.Compute)))
	}
	slices.Sort(list)
	return fmt.Sprintf("mode %d %s", g.Mode, strings.Join(list, " "))
}

func geometries(s fakenvml.State) (all []string) {
	for _, g := range s.GPUs {
		all = append(all, geometry(g))
	}
	return all
}

func says(t *testing.T, r lab.Result, words ...string) {
	t.Helper()
	for _, w := range words {
		check.That(t, strings.Contains(r.Stdout+r.Stderr, w), "it does not say %q: %s", w, r)
	}
}

func layout(profiles string) string {
	return "[[mig.gpu]]\nlayout = { " + profiles + " }\n"
}

const (
	sevenths = `"1g.5gb" = 7`
	mixed    = `"3g.20gb" = 1, "2g.10gb" = 1, "1g.5gb" = 2`
)

// TestLabMIG is the head-to-head of issue trackers: what users of the present tools have met, on
// one host.
func TestLabMIG(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, n gpuNode)
	}{
		{"unknown profile", unknownProfile},
		{"impossible layout", impossibleLayout},
		{"impossible layout on 8 GPUs", impossibleLayouts},
		{"least disturbance", leastDisturbance},
		{"busy instance stays", busyStays},
		{"mode change leaves the other GPU alone", modeAlone},
		{"partial config", partialConfig},
		{"T4 beside A100", besideT4},
		{"wrong filter", wrongFilter},
		{"nth call fails", nthFails},
		{"killed between any two calls", killedAnywhere},
		{"orphan instance", orphan},
		{"reset refused", resetRefused},
		{"names drift", namesDrift},
		{"RTX PRO 6000", twelfths},
		{"export", export},
		{"GPU lost", lostGPU},
		{"no driver", noDriver},
		{"another program owns MIG", otherOwner},
		{"daemons are paused and resumed", pausedDaemons},
		{"DCGM and a monitor hold a partition", heldPartition},
		{"undo", undoMIG},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, n.with(t, "A100-40:2")) })
	}
}

func unknownProfile(t *testing.T, n gpuNode) {
	n.wants(0, layout(sevenths))
	before := n.dump()
	says(t, n.wants(1, layout(`"1g.18gb" = 7`)), "cannot make 1g.18gb", "did you mean")
	after := n.dump()
	check.That(t, after.Mutations == before.Mutations && slices.Equal(geometries(after), geometries(before)),
		"%d mutations for a profile that is not there", after.Mutations-before.Mutations)
}

func impossibleLayout(t *testing.T, n gpuNode) {
	n.wants(0, layout(mixed))
	before := n.dump()
	says(t, n.wants(1, layout(`"1g.5gb" = 3, "2g.10gb" = 2, "3g.20gb" = 1`)), "cannot", "no room is left for", "leave out")
	after := n.dump()
	check.That(t, after.Mutations == before.Mutations, "%d mutations for an impossible layout", after.Mutations-before.Mutations)
}

func impossibleLayouts(t *testing.T, n gpuNode) {
	n = n.with(t, "A100-40:8")
	n.wants(1, layout(`"1g.5gb" = 3, "2g.10gb" = 2, "3g.20gb" = 1`))
	s := n.dump()
	check.That(t, s.Mutations == 0, "%d mutations for an impossible layout", s.Mutations)
}

func leastDisturbance(t *testing.T, n gpuNode) {
	n.wants(0, layout(mixed))
	before := n.dump()
	n.wants(0, layout(`"3g.20gb" = 1, "2g.10gb" = 2`))
	after := n.dump()
	destroyed := after.Counts["nvmlGpuInstanceDestroy"] - before.Counts["nvmlGpuInstanceDestroy"]
	created := after.Counts["nvmlDeviceCreateGpuInstanceWithPlacement"] - before.Counts["nvmlDeviceCreateGpuInstanceWithPlacement"]
	check.That(t, destroyed == 4 && created == 2, "%d instances destroyed and %d made on two GPUs, want 4 and 2", destroyed, created)
}

func busyStays(t *testing.T, n gpuNode) {
	n.wants(0, layout(mixed))
	gi := -1
	for _, i := range n.dump().GPUs[0].Instances {
		if i.Name == "3g.20gb" {
			gi = i.ID
		}
	}

	n.fake("client", "add", "--gpu", "0", "--gi", fmt.Sprint(gi), "--pid", "4711")
	n.wants(0, layout(`"3g.20gb" = 1, "2g.10gb" = 2`))
	i := n.dump().GPUs[0].Instances
	check.That(t, slices.ContainsFunc(i, func(i fakenvml.Instance) bool {
		return i.ID == gi && i.Name == "3g.20gb"
	}), "the instance in use is gone: %v", i)
	before := n.dump()
	says(t, n.wants(75, layout(sevenths)), "process 4711 uses 3g.20gb@4 of GPU 0", "--allow stop-clients")
	after := n.dump()
	check.That(t, after.Mutations == before.Mutations, "%d mutations where an instance in use would have to go", after.Mutations-before.Mutations)
}

func modeAlone(t *testing.T, n gpuNode) {
	one := "[[mig.gpu]]\ndevices = [1]\nlayout = { " + sevenths + " }\n"
	n.wants(0, one)
	before := n.dump()
	n.wants(0, layout(sevenths))
	after := n.dump()
	for _, m := range after.Log[len(before.Log):] {
		check.That(t, m.GPU != 1, "GPU 1 was converged already, and had %s", m.Call)
	}
	check.That(t, geometry(after.GPUs[0]) == geometry(after.GPUs[1]), "%s", geometries(after))
}

func partialConfig(t *testing.T, n gpuNode) {
	one := "[[mig.gpu]]\ndevices = [0]\nlayout = { " + sevenths + " }\n"
	n.wants(0, one)
	before := n.dump()
	says(t, n.wants(0, one), "Nothing to do.")
	says(t, n.wants(0, one, "plan", "--exit-code", "mig"), "Nothing to do.")
	says(t, n.wants(0, one, "mig", "fit"), "already has")
	after := n.dump()
	check.That(t, after.Mutations == before.Mutations && len(after.GPUs[1].Instances) == 0, "%d mutations in a second apply", after.Mutations-before.Mutations)
}

func besideT4(t *testing.T, n gpuNode) {
	n = n.with(t, "T4,A100-40")
	n.wants(0, layout(sevenths))
	says(t, n.wants(0, layout(sevenths)), "Nothing to do.")
	says(t, n.wants(1, "[[mig.gpu]]\ndevices = [0]\nlayout = { "+sevenths+" }\n"), "has no MIG")
}

func wrongFilter(t *testing.T, n gpuNode) {
	says(t, n.wants(1, "[[mig.gpu]]\nmatch = [\"0x233010DE\"]\nlayout = { \"1g.10gb\" = 7 }\n"), "no entry is for any of them", "A100")
	says(t, n.wants(1, "[[mig.gpu]]\ndevices = [9]\nlayout = { "+sevenths+" }\n"), "GPU 9", "this machine has 2 GPUs")
}

func namesDrift(t *testing.T, n gpuNode) {
	n = n.with(t, "GB200")
	says(t, n.wants(1, layout(`"1g.24gb" = 7`)), "1g.24gb", `did you mean "1g.23gb"`)
	n.wants(0, layout(`"1g" = 7`))
}

func twelfths(t *testing.T, n gpuNode) {
	n = n.with(t, "RTX-PRO-6000")
	n.wants(0, layout(`"1g.24gb" = 2, "2g.48gb" = 1`))
	g := geometry(n.dump().GPUs[0])
	check.That(t, strings.Count(g, "×1") == 3, "%v", g)
}

func export(t *testing.T, n gpuNode) {
	n.wants(0, layout(mixed))
	tables := n.wants(0, layout(mixed), "mig", "export").Stdout
	says(t, n.wants(0, tables), "Nothing to do.")
	parted := n.wants(0, layout(mixed), "mig", "export", "--parted", "current").Stdout
	n.Put("/etc/gpuadm/mig.yaml", parted, 0o644)
	says(t, n.wants(0, "[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"current\"\n"), "Nothing to do.")
}

func otherOwner(t *testing.T, n gpuNode) {
	n.Put("/etc/systemd/system/nvidia-mig-manager.service", "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Must("systemctl", "enable", "--quiet", "nvidia-mig-manager.service")
	defer n.Must("systemctl", "disable", "--quiet", "nvidia-mig-manager.service")
	says(t, n.wants(1, layout(sevenths)), "nvidia-mig-manager (nvidia-mig-manager.service) partitions the GPUs")
	s := n.dump()
	check.That(t, s.Mutations == 0, "%d mutations of what another owner has", s.Mutations)
}

func pausedDaemons(t *testing.T, n gpuNode) {
	n.Put("/etc/systemd/system/nvidia-persistenced.service", "[Service]\nExecStart=/bin/sleep infinity\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", "nvidia-persistenced.service")
	defer n.Must("systemctl", "stop", "nvidia-persistenced.service")
	pid := n.MainPID("nvidia-persistenced.service")
	n.wants(0, layout(sevenths))
	now := n.MainPID("nvidia-persistenced.service")
	check.That(t, now != 0 && now != pid, "a mode change: nvidia-persistenced had pid %d and has %d", pid, now)
	pid = n.MainPID("nvidia-persistenced.service")
	n.wants(0, layout(mixed))
	check.Equal(t, n.MainPID("nvidia-persistenced.service"), pid, "no mode change: nvidia-persistenced had pid %d and has", pid)
	n.wants(0, "[[mig.gpu]]\nenabled = false\n")
	n.fake("kill", "--nth", "1")
	n.wants(137, layout(sevenths))
	n.fake("heal")
	check.That(t, n.MainPID("nvidia-persistenced.service") == 0, "it was not killed while a daemon was paused")
	n.wants(0, layout(sevenths))
	check.That(t, n.MainPID("nvidia-persistenced.service") != 0, "the daemon that a killed run had paused is not resumed")
}

func undoMIG(t *testing.T, n gpuNode) {
	n = n.with(t, "H100-80:2")
	before := geometries(n.dump())
	n.wants(0, layout(`"3g.40gb" = 2`))
	n.wants(0, layout(`"1g.10gb" = 7`))
	n.wants(0, layout(`"1g.10gb" = 7`), "undo", "--yes")
	g := geometry(n.dump().GPUs[1])
	check.That(t, strings.Count(g, "3g.40gb") == 2, "after the first undo: %s", g)
	n.wants(0, layout(`"1g.10gb" = 7`), "undo", "--to", "all")
	check.List(t, geometries(n.dump()), before, "after undo of all:")
}

// TestLabMIGBoot: layout and mode are back before kubelet starts, on Hopper (which loses both) and
// on Ampere (which keeps the mode).
func TestLabMIGBoot(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "H100-80,A100-40")
	spec := "[[mig.gpu]]\nmatch = [\"H100-80GB\"]\nlayout = { \"3g.40gb\" = 2 }\n[[mig.gpu]]\nmatch = [\"A100-40GB\"]\nlayout = { \"1g.5gb\" = 7 }\n"
	n.Put("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/bin/sleep infinity\nRestart=always\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Must("systemctl", "enable", "--quiet", "kubelet.service")
	n.wants(0, spec, "apply", "--install")
	want := geometries(n.dump())
	for range 2 {
		n.Reboot()
		boots := n.dump().Boots
		eventually(func() bool {
			return strings.TrimSpace(n.Property("kubelet.service", "ActiveState")) == "active"
		})
		s := n.dump()
		if got := geometries(s); !slices.Equal(got, want) || s.Boots != boots {
			t.Fatalf("after boot %d:\n%s\nwant\n%s\n%s", s.Boots, got, want, n.Journal("gpuadm.service"))
		}
	}

	s := n.dump()
	for _, m := range s.Log {
		check.That(t, m.Call != "nvmlDeviceSetMigMode" || m.GPU != 1 || s.Counts["nvmlDeviceSetMigMode"] <= 4, "the A100's mode was set again")
	}
}
