// SPDX-License-Identifier: Apache-2.0

package modules_test

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

//go:embed testdata/machine.txtar
var machineFiles string

// machine is one with a GPU, a kernel with nouveau and headers, and the source of a driver told to
// DKMS.
func machine(t *testing.T) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte(machineFiles))
	must.OK(t, err)
	ko := kmodule.Nvidia("580.95.05", "Dual MIT/GPL", "6.8.0")
	const dep = "/lib/modules/6.8.0/modules.dep"
	n.Install("env", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, _ []string) ([]byte, error) {
		return nil, errors.Join(
			drivertest.Lay(f, "/var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module/nvidia.ko", ko),
			f.Symlink("/var/lib/dkms/nvidia/kernel-6.8.0-x86_64", "580.95.05/6.8.0/x86_64"),
			drivertest.Lay(f, "/lib/modules/6.8.0/updates/dkms/nvidia.ko", ko),
			drivertest.Lay(f, dep, []byte("kernel/fs/ext4.ko:\nupdates/dkms/nvidia.ko:\n")),
		)
	}})
	n.Install("dkms", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
		if argv[1] != "remove" {
			return nil, nil
		}
		var errs []error
		for _, name := range []string{
			"/var/lib/dkms/nvidia/kernel-6.8.0-x86_64", "/var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module/nvidia.ko", "/var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module",
			"/var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64", "/var/lib/dkms/nvidia/580.95.05/6.8.0", "/lib/modules/6.8.0/updates/dkms/nvidia.ko", "/lib/modules/6.8.0/updates/dkms", "/lib/modules/6.8.0/updates",
		} {
			errs = append(errs, f.Remove(name))
		}

		return nil, errors.Join(append(errs, drivertest.Lay(f, dep, []byte("kernel/fs/ext4.ko:\n")))...)
	}})
	n.Install("update-initramfs", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, _ []string) ([]byte, error) {
		return nil, drivertest.Lay(f, "/boot/initrd.img-6.8.0", nil)
	}})
	n.Install("modprobe", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
		name := strings.ReplaceAll(argv[1], "-", "_")
		return nil, errors.Join(
			drivertest.Lay(f, "/sys/module/"+name+"/refcnt", []byte("0\n")), drivertest.Lay(f, "/sys/module/nvidia/version", []byte("580.95.05\n")),
			drivertest.Lay(f, "/proc/driver/nvidia/version", []byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n")),
			drivertest.Lay(f, "/sys/bus/pci/devices/0000:17:00.0/uevent", []byte("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n")),
		)
	}})
	n.Install("rmmod", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
		return nil, f.Remove("/sys/module/" + argv[1] + "/refcnt")
	}})
	return n
}

// engine wants the modules of one version for kernel 6.8.0.
func engine() *converge.Engine {
	side := modules.KernelSide{
		Version:    "580.95.05",
		Flavour:    "open",
		Build:      "dkms",
		Kernels:    []string{"6.8.0"},
		Companions: []string{"nvidia-uvm"},
	}
	_, thingOf := stages.Run(new(node.Session), nil)
	return &converge.Engine{ThingOf: thingOf, Prune: stages.Prune, Spec: spec.Spec{Sections: []string{"driver"}}, Stages: []converge.Stage{{
		Name: "driver",
		Wants: func(_ spec.Spec, f facts.Facts) ([]converge.Want, error) {
			settings, err := modules.Settings(side)
			if err != nil {
				return nil, err
			}
			loaded, err := modules.Wants(side, f, facts.Modules{})
			return append(settings, loaded...), err
		},
	}}}
}

// TestRunningKernelIsGone: no driver can be loaded into a kernel that has no folder in
// /lib/modules: each apply says that a reboot is needed, until a driver answers.
func TestRunningKernelIsGone(t *testing.T) {
	n := machine(t)
	n.Install("upgrade", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, _ []string) ([]byte, error) {
		return nil, drivertest.Lay(f, "/proc/sys/kernel/osrelease", []byte("6.5.0\n"))
	}})
	must.Get(n.Do(t.Context(), "upgrade"))(t)
	e := engine()
	for try := range 2 {
		res := must.Get(e.Apply(t.Context(), n))(t)
		made := len(res.Made) > 0
		check.That(t, made == (try == 0) && strings.Contains(res.Reboot, "kernel 6.5.0 runs and is not installed") && strings.Contains(res.Reboot, "kernel 6.8.0 has the driver"),
			"apply %d: %q, %v", try, res.Reboot, res.Made)
	}

	p := must.Get(e.Plan(t.Context(), n.View()))(t)
	check.That(t, p.Now() == 0 && p.Deferred == 1, "%+v", p.Changes)
	check.Equal(t, p.State, converge.EndsReboot, "the plan ends with:")
	check.Says(t, p.NeedsReboot(), "kernel 6.5.0 runs and is not installed", "kernel 6.8.0 has the driver")
}

// TestModulesThereAndBack builds, makes the initial file system and loads through the engine; the
// second apply does nothing, and undo leaves every file as it was and nothing loaded.
func TestModulesThereAndBack(t *testing.T) {
	n := machine(t)
	first := n.Tree(converge.Home, "/sys", "/proc", "/run")
	e := engine()
	plan, err := e.Plan(context.Background(), n.View())
	must.That(t, err == nil && len(plan.Cannot()) == 0, "%v: %v", err, plan.Cannot())
	res := must.Get(e.Apply(context.Background(), n))(t)
	var made []string
	for _, c := range res.Made {
		made = append(made, c.Kind)
	}
	got := strings.Join(made, " ")
	check.That(t, got == "file file dkms initramfs module" || got == "folder file folder file dkms initramfs module", "%v", got)
	u, err := n.ReadFile("/sys/module/nvidia_uvm/refcnt")
	check.That(t, err == nil && string(u) == "0\n", "nvidia-uvm is not loaded: %v", err)
	touches := n.Touches()
	if res, err := e.Apply(context.Background(), n); err != nil || len(res.Made) > 0 || n.Touches() != touches || len(n.Violations()) > 0 {
		t.Errorf("the second apply: %v, %v, %d touches, %v", res.Made, err, n.Touches()-touches, n.Violations())
	}
	must.Get(e.Undo(context.Background(), n, "", nil))(t)
	check.None(t, cmp.Diff(first, n.Tree(converge.Home, "/sys", "/proc", "/run")), "after undo (-first +now)")
	_, err = n.Stat("/sys/module/nvidia/refcnt")
	check.That(t, err != nil, "the module is loaded without anything on disk")
}
