// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func nthFails(t *testing.T, n gpuNode) {
	n.wants(0, layout(mixed))
	before := geometries(n.dump())
	for nth := 1; ; nth++ {
		n.fake("fail", "--nth", fmt.Sprint(nth), "--code", "UNKNOWN")
		r := n.Exec("gpuadm", "apply", "mig", "-f", "/root/next.toml")
		if nth == 1 && r.Exit == 2 { // the file is written once
			n.Put("/root/next.toml", "format = 1\n"+layout(sevenths), 0o644)
			nth = 0
			n.fake("heal")
			continue
		}

		n.fake("heal")
		if r.Exit == 0 {
			check.That(t, nth >= 20, "only %d calls failed", nth-1)
			return
		}
		after := geometries(n.dump())
		must.That(t, slices.Equal(after, before), "call %d failed, and it is\n%s\nbefore\n%s\n%s", nth, after, before, r)
	}
}

func killedAnywhere(t *testing.T, n gpuNode) {
	n.Put("/root/next.toml", "format = 1\n"+layout(sevenths), 0o644)
	for _, when := range []string{"--nth", "--late"} {
		for nth := 1; ; nth += check.Every(3) {
			n = n.with(t, "A100-40:2")
			n.wants(0, layout(mixed))
			args := []string{"kill", "--nth", fmt.Sprint(nth)}
			if when == "--late" {
				args = append(args, when)
			}
			n.fake(args...)
			r := n.Exec("gpuadm", "apply", "mig", "-f", "/root/next.toml")
			n.fake("heal")
			if r.Exit == 0 {
				check.That(t, nth >= 20, "killed at %d calls only", nth-1)
				break
			}
			again := n.Exec("gpuadm", "apply", "mig", "-f", "/root/next.toml")
			s := n.dump()
			must.That(t, again.Exit == 0 && strings.Count(geometry(s.GPUs[0]), "1g.5gb@") == 7 && geometry(s.GPUs[0]) == geometry(s.GPUs[1]),
				"killed at call %d, then applied again: %s\n%s", nth, geometries(s), again)
			if nth%4 == 1 { // undo of a killed and a completed run is one
				if r := n.Exec("gpuadm", "undo", "--to", "all"); r.Exit != 0 || n.dump().GPUs[0].Mode != 0 {
					t.Fatalf("undone after a kill at call %d: %s\n%s", nth, geometries(n.dump()), r)
				}
			}
		}
	}
}

func orphan(t *testing.T, n gpuNode) {
	n.wants(0, "[[mig.gpu]]\n")
	n.fake("kill", "--call", "nvmlGpuInstanceCreateComputeInstance", "--nth", "1")
	n.wants(137, layout(sevenths))
	n.fake("heal")
	g := geometry(n.dump().GPUs[0])
	must.That(t, strings.Contains(g, "×0"), "it was not killed between an instance and its compute instance: %s", g)
	says(t, n.wants(3, layout(sevenths), "plan", "--exit-code", "mig"), "()")
	before := n.dump()
	n.wants(0, layout(sevenths))
	after := n.dump()
	destroyed := after.Counts["nvmlGpuInstanceDestroy"] - before.Counts["nvmlGpuInstanceDestroy"]
	check.That(t, destroyed == 0 && !strings.Contains(geometry(after.GPUs[0]), "×0"), "%s, %d instances destroyed", geometries(after), destroyed)
}

func resetRefused(t *testing.T, n gpuNode) {
	n.fake("set", "--gpu", "0", "self_reset=0") // as where it is passed through to a virtual machine
	n.fake("reset-refused", "--gpu", "0")
	r := n.wants(4, layout(sevenths))
	says(t, r, "reboot")
	if s := n.dump(); s.GPUs[0].Pending != 1 || s.GPUs[0].Mode != 0 {
		t.Errorf("mode %d, pending %d: the next boot would not change it", s.GPUs[0].Mode, s.GPUs[0].Pending)
	}
}

func lostGPU(t *testing.T, n gpuNode) {
	n.fake("lost", "--gpu", "1")
	says(t, n.wants(1, layout(sevenths)), "cannot partition GPU 1: ", "bus")
	s := n.dump()
	check.That(t, s.Mutations == 0, "%d mutations", s.Mutations)
}

func noDriver(t *testing.T, n gpuNode) {
	n.fake("driver", "--init", "DRIVER_NOT_LOADED")
	says(t, n.wants(75, layout(`"1g.10gb" = 7`)), "not loaded") // the PCI bus has H100s
	says(t, n.wants(1, layout(sevenths), "mig", "profiles"), "not loaded", "--gpu")
	n.fake("driver", "--init", "SUCCESS")
}

// heldPartition: DCGM has a partition's device open, which NVML lists for no process, and the
// driver destroys nothing under it. gpuadm pauses DCGM, since it knows the service. A monitor that
// it does not know is named before anything is touched.
// Sources: https://github.com/NVIDIA/DCGM/issues/276,
// https://github.com/NVIDIA/mig-parted/issues/181.
func heldPartition(t *testing.T, n gpuNode) {
	const caps, opens = "/dev/nvidia-caps/nvidia-cap21", `perl -e 'sysopen(my $f, "` + "/dev/nvidia-caps/nvidia-cap21" + `", 010000000) or die $!; sleep 1000'` // O_PATH: no kernel module serves it
	n.wants(0, layout(mixed))
	gi := n.dump().GPUs[0].Instances[0].ID
	n.Must("sh", "-ec", fmt.Sprintf(`mkdir -p /run/driver/nvidia/capabilities/gpu0/mig/gi%d /dev/nvidia-caps
printf 'DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n' >/run/driver/nvidia/capabilities/gpu0/mig/gi%[1]d/access
printf 'Character devices:\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n' >/run/proc-devices
mknod %[2]s c 235 21
mount --bind /run/driver /proc/driver; mount --bind /run/proc-devices /proc/devices`, gi, caps))
	defer n.Must("sh", "-c", "umount /proc/driver /proc/devices; rm "+caps)
	n.Put("/usr/local/bin/hold", "#!/bin/sh\nfakenvml fail --call nvmlGpuInstanceDestroy --nth 0 --code IN_USE\nexec "+opens+"\n", 0o755)
	unit := "[Service]\nExecStart=/usr/local/bin/hold\nExecStopPost=/usr/local/bin/fakenvml heal\n"
	held := func() bool {
		return n.Exec("sh", "-c", "ls -l /proc/[0-9]*/fd | grep -q "+caps).Exit == 0
	}

	n.Put("/etc/systemd/system/monitor.service", unit, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", "monitor.service")
	must.That(t, eventually(held), "the monitor does not hold the device")
	before := n.dump()
	says(t, n.wants(75, layout(sevenths)), "(perl)", caps, "monitor.service")
	after := n.dump()
	check.That(t, after.Mutations == before.Mutations, "%d mutations where a partition is held", after.Mutations-before.Mutations)
	n.Must("systemctl", "stop", "monitor.service")

	n.Put("/etc/systemd/system/nvidia-dcgm.service", unit, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", "nvidia-dcgm.service")
	defer n.Must("systemctl", "stop", "nvidia-dcgm.service")
	must.That(t, eventually(held), "DCGM does not hold the device")
	pid := n.MainPID("nvidia-dcgm.service")
	says(t, n.wants(0, layout(sevenths), "plan", "mig"), "Pauses and resumes nvidia-dcgm.service.")
	says(t, n.wants(0, layout(sevenths)), "paused and resumed nvidia-dcgm.service.")
	g := geometry(n.dump().GPUs[0])
	check.That(t, strings.Count(g, "1g.5gb") == 7, "under DCGM: %s", g)
	now := n.MainPID("nvidia-dcgm.service")
	check.That(t, now != 0 && now != pid, "nvidia-dcgm.service had pid %d and has %d", pid, now)
}

// TestLabPartitionNodes: nodes of partitions that no client of the driver has had made yet are
// there after an apply of stage toolkit or of stage mig alone, with the numbers that the driver
// says, and /dev/char leads to them. The script does what nvidia-modprobe does with such a file:
// nvidia_cap_mknod in modprobe-utils/nvidia-modprobe-utils.c of
// https://github.com/NVIDIA/nvidia-modprobe.
func TestLabPartitionNodes(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "A100-40:2")
	const spec = "[runtime]\n[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 1 }\n"
	n.wants(0, spec)
	in := n.dump().GPUs[0].Instances[0]
	n.Must("sh", "-ec", fmt.Sprintf(`gi=/run/driver/nvidia/capabilities/gpu0/mig/gi%d; mkdir -p $gi/ci%d
printf 'DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n' >$gi/access
printf 'DeviceFileMinor: 22\nDeviceFileMode: 292\nDeviceFileModify: 1\n' >$gi/ci%[2]d/access
printf 'Character devices:\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n' >/run/proc-devices
mount --bind /run/driver /proc/driver; mount --bind /run/proc-devices /proc/devices`, in.ID, in.Compute[0].ID))
	n.Put("/usr/bin/nvidia-modprobe", `#!/bin/sh
set -e
minor=$(sed -n 's/^DeviceFileMinor: //p' "$2")
mkdir -p /dev/nvidia-caps
mknod -m 0444 /dev/nvidia-caps/nvidia-cap$minor c $(sed -n 's/ nvidia-caps$//p' /proc/devices) $minor
`, 0o755)
	nodes := func() {
		t.Helper()
		for minor, hex := range map[string]string{"21": "15", "22": "16"} {
			check.Equal(t, n.Must("stat", "-L", "-c", "%F %t:%T %n", "/dev/char/235:"+minor), "character special file eb:"+hex+" /dev/char/235:"+minor+"\n", "it is")
			check.Equal(t, n.Must("readlink", "-f", "/dev/char/235:"+minor), "/dev/nvidia-caps/nvidia-cap"+minor+"\n", "it leads to")
		}
	}

	says(t, n.wants(0, spec, "apply", "toolkit"), "/dev/char")
	nodes()
	says(t, n.wants(0, spec, "apply", "toolkit"), "Nothing to do.")

	n.Must("rm", "-r", "/dev/nvidia-caps", "/dev/char/235:21", "/dev/char/235:22")
	more := strings.Replace(spec, "= 1", `= 1, "1g.5gb" = 1`, 1) // the instance stays, and its nodes are those of before
	says(t, n.wants(0, more), "/dev/nvidia-caps")
	nodes()
	says(t, n.wants(0, more), "Nothing to do.")
	says(t, n.wants(0, more, "apply", "toolkit"), "Nothing to do.")
}

// What mig-parted needs on the same fake library, recorded from an unmodified one:
// testdata/mig-parted.txt says how.
//
//go:embed testdata/mig-parted.txt
var parted string

// figures are calls of the driver's library, sessions with it, changes of GPUs, and GPUs that a
// session attached.
type figures struct{ calls, sessions, mutations, attaches int }

// charged is the time that the driver takes in seconds, at 100 ms a change and 1 s to attach GPUs,
// so many of them side by side. It is counted and not waited for: a program's own time and a
// machine's load are not in it.
func (f figures) charged(together int) float64 {
	return 0.1*float64(f.mutations) + float64(f.attaches)/float64(together)
}

// recorded reads the figures by the name of their row.
func recorded(t *testing.T) map[string]figures {
	t.Helper()
	rows := map[string]figures{}
	for line := range strings.Lines(parted) {
		var f figures
		name, numbers, ok := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		_, err := fmt.Sscan(numbers, &f.calls, &f.sessions, &f.mutations, &f.attaches)
		must.That(t, err == nil, "cannot read %q: %v", line, err)
		rows[name] = f
	}

	return rows
}

// besideLayouts are a layout in each row of the table, as gpuadm writes it, and what gpuadm's exit
// status is.
var besideLayouts = []struct {
	name, layout string
	exit         int
}{
	{"off to seven", sevenths, 0},
	{"nothing to do", sevenths, 0},
	{"seven to mixed", mixed, 0},
	{"mixed to next", `"3g.20gb" = 1, "2g.10gb" = 2`, 0},
	{"next to seven", sevenths, 0},
	{"impossible", `"1g.5gb" = 3, "2g.10gb" = 2, "3g.20gb" = 1`, 1},
}

// measured is what a run asked of the driver.
func (n gpuNode) measured(run func()) figures {
	n.t.Helper()
	n.fake("forget")
	run()
	s := n.dump()
	f := figures{mutations: s.Mutations, attaches: s.Attaches}
	for name, count := range s.Counts {
		f.calls += count
		if strings.HasPrefix(name, "nvmlInit") {
			f.sessions += count
		}
	}

	return f
}

// theirs are the figures of mig-parted: those recorded, or where GPUADM_TEST_MIG_PARTED names its
// program, of a run beside gpuadm's. It is in no module proxy, so CI compares with the record.
func theirs(t *testing.T, n gpuNode) map[string]figures {
	t.Helper()
	rows := recorded(t)
	path := os.Getenv("GPUADM_TEST_MIG_PARTED")
	if path == "" {
		return rows
	}
	program := must.Get(os.ReadFile(path))(t)
	n.Put("/usr/local/bin/nvidia-mig-parted", string(program), 0o755)
	// It reads whether the kernel has the module, and on the PCI bus the fake GPUs with their
	// memory regions.
	for _, g := range n.dump().GPUs {
		n.Must("sh", "-ec", `mkdir -p /run/bus; cp -r /sys/bus/pci/devices/0000:18:00.0 /run/bus/$1; cd /run/bus/$1; echo 0x0 0x0 0x0 >resource; echo 0x20b0 >device`, "sh", g.Address)
	}
	const sees = `mount --bind /run/bus /sys/bus/pci/devices; mount -t tmpfs none /proc; echo nvidia 1 0 - Live 0x0 >/proc/modules; exec "$@"`
	for _, row := range besideLayouts {
		n.Put("/root/parted.yaml", "version: v1\nmig-configs:\n  it: [{devices: all, mig-enabled: true, mig-devices: {"+strings.ReplaceAll(row.layout, " =", ":")+"}}]\n", 0o644)
		rows[row.name] = n.measured(func() {
			r := n.Exec("unshare", "--mount", "sh", "-ec", sees, "sh", "nvidia-mig-parted", "apply", "-f", "/root/parted.yaml", "-c", "it")
			check.That(t, r.Exit == row.exit, "mig-parted, %s: %s", row.name, r)
		})
	}

	return rows
}

// TestLabMIGBeside: gpuadm makes fewer calls and fewer changes than mig-parted, in fewer sessions
// and at most three, and the driver takes less time for them, from one layout of eight GPUs to the
// next. Each session attaches GPUs that no process holds, which takes seconds on real ones.
func TestLabMIGBeside(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "A100-40:8")
	want := theirs(t, n)
	n = n.with(t, "A100-40:8")
	for _, row := range besideLayouts {
		got := n.measured(func() { n.wants(row.exit, layout(row.layout)) })
		theirs, ok := want[row.name]
		const line = "%5d calls %3d sessions %4d changes %3d attached %6.1f s"
		t.Logf("%-14s gpuadm "+line+"; mig-parted "+line, row.name, got.calls, got.sessions, got.mutations, got.attaches, got.charged(8),
			theirs.calls, theirs.sessions, theirs.mutations, theirs.attaches, theirs.charged(1))
		fewer := got.calls < theirs.calls && got.sessions < theirs.sessions && (got.mutations == 0 || got.mutations < theirs.mutations)
		if !ok || !fewer || got.sessions > 3 || got.charged(8) >= theirs.charged(1) {
			t.Errorf("%s: %+v, mig-parted's %+v", row.name, got, theirs)
		}
	}

	if got := n.measured(func() { n.Exec("gpuadm", "status") }); got.sessions != 1 { // with one for each GPU, the calls grow by the square
		t.Errorf("status: %+v, not one session", got)
	}
}
