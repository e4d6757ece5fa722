// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestMain lets the test binary be a user of the library too: FAKENVML_CHILD says what it does. It finds the library like
// any program, by LD_LIBRARY_PATH.
func TestMain(m *testing.M) {
	child := strings.Fields(os.Getenv("FAKENVML_CHILD"))
	if len(child) == 0 {
		os.Exit(m.Run())
	}
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		fmt.Println(ret)
		os.Exit(1)
	}
	switch child[0] {
	case "churn":
		seed, _ := strconv.ParseUint(child[1], 10, 64)
		churn(lib, rand.New(rand.NewPCG(seed, 1)), 150)
	case "fill":
		for gpu := range 2 {
			fill(lib, gpu)
		}
	}
	os.Exit(0)
}

// child starts this binary as another process on the machine.
func child(t testing.TB, f *Fake, what string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), f.Env()...), "FAKENVML_CHILD="+what)
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

// churn creates and destroys at random, on all GPUs.
func churn(lib nvml.Interface, random *rand.Rand, n int) {
	gpus, _ := lib.DeviceGetCount()
	for range n {
		d, _ := lib.DeviceGetHandleByIndex(random.IntN(gpus))
		info, ret := d.GetGpuInstanceProfileInfo(random.IntN(nvml.GPU_INSTANCE_PROFILE_COUNT))
		if ret != nvml.SUCCESS {
			continue
		}
		if random.IntN(2) == 0 {
			if gi, ret := d.CreateGpuInstance(&info); ret == nvml.SUCCESS {
				ci, ret := gi.GetComputeInstanceProfileInfo(random.IntN(3), 0)
				if ret == nvml.SUCCESS {
					_, _ = gi.CreateComputeInstance(&ci)
				}
			}
			continue
		}
		list, _ := d.GetGpuInstances(&info)
		for _, gi := range list {
			for id := range 8 {
				if ci, ret := gi.GetComputeInstanceById(id); ret == nvml.SUCCESS {
					_ = ci.Destroy()
				}
			}
			_ = gi.Destroy()
		}
	}
}

// TestTwoProcesses: what one makes the other finds.
func TestTwoProcesses(t *testing.T) {
	f, lib := load(t, "H100-80:2")
	if err := child(t, f, "fill").Wait(); err != nil {
		t.Fatal(err)
	}
	for gpu := range 2 {
		for i := range 7 {
			if _, ret := device(t, lib, gpu).GetMigDeviceHandleByIndex(i); ret != nvml.SUCCESS {
				t.Errorf("GPU %d: MIG device %d: %v", gpu, i, ret)
			}
		}
	}
	before := f.Dump()
	f.Reboot()
	if err := child(t, f, "fill").Wait(); err != nil {
		t.Fatal(err)
	}
	for i, g := range f.Dump().GPUs {
		if fmt.Sprint(g.Instances) != fmt.Sprint(before.GPUs[i].Instances) {
			t.Errorf("GPU %d has other instances or UUIDs when the same are made again", i)
		}
	}
}

// TestKill: a process dies before or after its nth change, and the next one finds the machine so, and unlocked.
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
		err := child(t, f, "fill").Wait()
		exit, ok := err.(*exec.ExitError)
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the process ended with %v", err)
		}
		instances := f.Dump().GPUs[0].Instances
		if len(instances) != c.want {
			t.Errorf("late %v: %d instances, want %d", c.late, len(instances), c.want)
		}
		f.Heal()
		f.Reboot()
		if err := child(t, f, "fill").Wait(); err != nil {
			t.Errorf("the next process: %v", err)
		}
	}
}

// TestConcurrent lets four processes churn, one of which is killed at any moment.
func TestConcurrent(t *testing.T) {
	f, lib := load(t, "H100-80,RTX-PRO-6000")
	enabled(t, f, lib, 0)
	enabled(t, f, lib, 1)
	for round := range 3 {
		var all []*exec.Cmd
		for i := range 4 {
			all = append(all, child(t, f, fmt.Sprint("churn ", 4*round+i)))
		}
		for range 5 {
			invariants(t, f.Dump())
		}
		_ = all[0].Process.Kill()
		for i, cmd := range all {
			if err := cmd.Wait(); err != nil && i > 0 {
				t.Error(err)
			}
		}
		invariants(t, f.Dump())
	}
}

// TestLatency: changes of two processes on two GPUs do not overlap, so together they cannot be faster than their sum.
func TestLatency(t *testing.T) {
	f := New(t, "H100-80:2")
	f.Latency(5)
	start := time.Now()
	both := []*exec.Cmd{child(t, f, "fill"), child(t, f, "fill")} // the second runs into full GPUs and ends
	for _, cmd := range both {
		_ = cmd.Wait()
	}
	if n := f.Dump().Mutations; time.Since(start) < time.Duration(n)*5*time.Millisecond || n < 16 {
		t.Errorf("%d changes of 5 ms in %v", n, time.Since(start))
	}
}

// invariants hold whatever was done: nothing overlaps, numbers are kept, ids follow from places.
func invariants(t testing.TB, s State) {
	t.Helper()
	for _, g := range s.GPUs {
		var m Model
		for _, one := range models(t) {
			if one.Key == g.Model {
				m = one
			}
		}
		if len(g.Instances) > 0 && g.Mode == 0 {
			t.Fatalf("GPU %d has instances and no MIG: %+v", g.Index, g.Instances)
		}
		var taken uint
		number, media := map[int]int{}, map[int]int{}
		for _, gi := range g.Instances {
			at := (uint(1)<<gi.Size - 1) << gi.Start
			if taken&at != 0 || gi.Start+gi.Size > m.Slices {
				t.Fatalf("GPU %d: instance %d lies on others: %+v", g.Index, gi.ID, g.Instances)
			}
			taken |= at
			if gi.ID != id(m, gi.Start, gi.Size) {
				t.Fatalf("instance at %d:%d has id %d", gi.Start, gi.Size, gi.ID)
			}
			for _, p := range m.Profiles {
				if p.ID != gi.Profile {
					continue
				}
				media[p.Media]++
				if number[p.ID]++; number[p.ID] > p.Max {
					t.Fatalf("GPU %d has %d of %s", g.Index, number[p.ID], p.Name)
				}
				computeInvariants(t, p, gi)
			}
		}
		if media[2] > 1 || (media[2] == 1 && media[1] > 0) {
			t.Fatalf("GPU %d: media engines are taken twice: %+v", g.Index, g.Instances)
		}
	}
}

func computeInvariants(t testing.TB, p Profile, gi Instance) {
	t.Helper()
	var taken uint
	for _, ci := range gi.Compute {
		at := (uint(1)<<ci.Size - 1) << ci.Start
		if taken&at != 0 || ci.Start+ci.Size > p.Slices {
			t.Fatalf("compute instance %d lies on others: %+v", ci.ID, gi)
		}
		taken |= at
	}
}
