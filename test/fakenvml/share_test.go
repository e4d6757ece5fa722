// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestMain lets the test binary be a user of the library too: FAKENVML_CHILD has it fill two GPUs.
// It finds the library like any program, by LD_LIBRARY_PATH.
func TestMain(m *testing.M) {
	if os.Getenv("FAKENVML_CHILD") == "" {
		os.Exit(m.Run())
	}
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		fmt.Println(ret)
		os.Exit(1)
	}
	for gpu := range 2 {
		fill(lib, gpu)
	}
	os.Exit(0)
}

// child starts this binary as another process on the machine.
func child(t testing.TB, f *Fake) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), f.Env()...), "FAKENVML_CHILD=fill")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// fill makes MIG instances of one slice all over a GPU.
func fill(lib nvml.Interface, gpu int) {
	d, _ := lib.DeviceGetHandleByIndex(gpu)
	_, _ = d.SetMigMode(1)
	info, _ := d.GetGpuInstanceProfileInfo(0)
	for range 7 {
		gi, ret := d.CreateGpuInstance(&info)
		if ret != nvml.SUCCESS {
			fmt.Println(ret)
			os.Exit(2)
		}
		ci, _ := gi.GetComputeInstanceProfileInfo(0, 0)
		_, _ = gi.CreateComputeInstance(&ci)
	}
}

// TestTwoProcesses: what one makes the other finds.
func TestTwoProcesses(t *testing.T) {
	f, lib := load(t, "H100-80:2")
	if err := child(t, f).Wait(); err != nil {
		t.Fatal(err)
	}
	for gpu := range 2 {
		for i := range 7 {
			_, ret := device(t, lib, gpu).GetMigDeviceHandleByIndex(i)
			check.That(t, ret == nvml.SUCCESS, "GPU %d: MIG device %d: %v", gpu, i, ret)
		}
	}

	before := f.Dump()
	f.Reboot()
	if err := child(t, f).Wait(); err != nil {
		t.Fatal(err)
	}
	for i, g := range f.Dump().GPUs {
		check.That(t, fmt.Sprint(g.Instances) == fmt.Sprint(before.GPUs[i].Instances), "GPU %d has other instances or UUIDs when the same are made again", i)
	}
}

// TestKill: a process dies before or after its nth change, and the next one finds the machine so,
// and unlocked.
func TestKill(t *testing.T) {
	for _, c := range []struct {
		late bool
		want int
	}{{false, 3}, {true, 4}} {
		f := New(t, "H100-80:2")
		if c.late {
			f.KillLate(8) // mode, and three times instance and compute instance; the eighth is an instance
		} else {
			f.Kill(8)
		}

		err := child(t, f).Wait()
		exit, ok := err.(*exec.ExitError)
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the process ended with %v", err)
		}
		instances := f.Dump().GPUs[0].Instances
		check.That(t, len(instances) == c.want, "late %v: %d instances, want %d", c.late, len(instances), c.want)
		f.Heal()
		f.Reboot()
		err = child(t, f).Wait()
		check.That(t, err == nil, "the next process: %v", err)
	}
}
