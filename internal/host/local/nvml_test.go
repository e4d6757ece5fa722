//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const gpu0, gpu1 = "0000:17:00.0", "0000:1f:00.0"

func readDriver(t *testing.T, v host.View) host.Driver {
	t.Helper()
	d := must.Get(v.Driver(t.Context()))(t)
	return d
}

// TestNVMLRead reads three GPUs: one with faults and a partition, one that programs use, and one that
// is well.
func TestNVMLRead(t *testing.T) {
	h := openFake(t, "H100-80,T4,A100-80")
	h.fake.Do("remap", "--gpu", "0", "failed=1", "pending=1")
	h.fake.Do("fabric", "--gpu", "0", "--state", "completed", "--clique", "7")
	h.fake.Do("set", "--gpu", "1", "ecc=0")
	h.fake.Do("ecc", "--gpu", "0", "uncorrected=5")
	h.fake.Do("set", "--gpu", "0", "clock_reasons=200") // power brake 0x80, heat 0x40, the sum of both 0x8
	h.fake.Do("set", "--gpu", "1", "clock_reasons=72")
	h.fake.Do("set", "--gpu", "2", "clock_reasons=5") // idle, and the power cap
	partition(t, h)
	h.fake.Hold(1, -1, 99)
	h.fake.Hold(1, -1, 12)

	h.fake.Forget()
	d := readDriver(t, h)
	counts := h.fake.Dump().Counts
	calls := 0
	for _, n := range counts {
		calls += n
	}
	check.That(t, counts["nvmlInit_v2"] == 1 && calls <= 160, "each call costs: %d calls: %v", calls, counts)
	_, ret := nvml.New(nvml.WithLibraryPath(h.fake.Library)).DeviceGetCount()
	check.That(t, ret == nvml.ERROR_UNINITIALIZED, "NVML is still open, and the driver cannot be unloaded: %v", int(ret))

	check.Equal(t, d.Version, "580.95.05", "version")
	check.Equal(t, d.NVML, d.Version, "version of NVML")
	check.Equal(t, d.CUDA, "13.0", "CUDA")
	must.That(t, len(d.GPUs) == 3, "%+v", d)

	dump := h.fake.Dump()
	for i, g := range d.GPUs {
		is := dump.GPUs[i]
		check.That(t, g.Index == i && g.Minor == i, "GPU %d: %+v", i, g)
		check.That(t, g.UUID == is.UUID && g.Serial == is.Serial && g.Address == is.Address, "GPU %d: %+v", i, g)
	}
	readsFaulty(t, d.GPUs[0])
	readsInUse(t, d.GPUs[1])
	check.None(t, d.GPUs[2].Slowed, "slowed:")

	compute := host.ComputeInstance{
		ID:      0,
		Profile: 2,
		At:      host.Span{Start: 0, Size: 3},
		UUID:    dump.GPUs[0].Instances[0].Compute[0].UUID,
		Share: host.Share{
			Memory:   40448 << 20,
			SMs:      60,
			Slices:   3,
			Compute:  3,
			Copy:     3,
			Decoders: 3,
			JPEG:     3,
		},
	}
	instance := host.Instance{
		ID:      2,
		Profile: 9,
		At:      host.Span{Start: 4, Size: 4},
		Clients: []int{4242},
		Compute: []host.ComputeInstance{compute},
	}
	check.None(t, cmp.Diff([]host.Instance{instance}, d.GPUs[0].Instances), "got")
}

// partition gives the first GPU a partition that a program uses.
func partition(t *testing.T, h faked) {
	t.Helper()
	must.OK(t, h.SetMIGMode(t.Context(), gpu0, true))
	id := must.Get(h.CreateInstance(t.Context(), gpu0, 9, host.Span{Start: 4, Size: 4}))(t)
	_, err := h.CreateCompute(t.Context(), gpu0, id, 2, host.Span{})
	must.OK(t, err)
	h.fake.Hold(0, id, 4242)
}

func readsFaulty(t *testing.T, g host.GPU) {
	t.Helper()
	check.Equal(t, g.Name, "NVIDIA H100 80GB HBM3", "name")
	check.That(t, g.Device == "0x233010DE" && g.Sub == "0x16C110DE", "ids: %+v", g)
	check.That(t, g.Arch == "hopper" && g.Compute == "9.0", "architecture: %+v", g)
	check.Equal(t, g.Memory, 81559<<20, "memory")

	check.That(t, g.RemapFails && g.RemapWaits, "remapped rows: %+v", g)
	check.That(t, g.ECC == "on" && g.Uncorrected == 5, "ECC: %+v", g)
	check.Equal(t, g.Slowed, "power-brake", "slowed by")
	fabric := g.Fabric
	check.That(t, fabric.State == "completed" && fabric.Clique == 7 && len(fabric.Cluster) == 36, "fabric: %+v", fabric)
}

func readsInUse(t *testing.T, g host.GPU) {
	t.Helper()
	check.List(t, g.Clients, []int{12, 99}, "clients")
	check.That(t, g.ECC == "off" && g.Uncorrected == 0, "ECC: %+v", g)
	check.Equal(t, g.Slowed, "heat", "slowed by")
	check.That(t, !g.MIG && g.Profiles == nil, "it has no MIG: %+v", g)
	check.None(t, g.Fabric.State, "fabric:")
}

// TestNVMLLicence reads the licence of a guest's GPU, and none of a GPU that is not a guest's.
func TestNVMLLicence(t *testing.T) {
	h := openFake(t, "H100-80,T4,A100-80")
	for i, state := range []string{"unlicensed", "licensed", "expired"} {
		h.fake.Do("set", "--gpu", "2", fmt.Sprintf("licence=%d", i+1))
		is := readDriver(t, h).GPUs
		check.None(t, is[0].Licence, "a GPU that is not a guest's:")
		check.Equal(t, is[2].Licence, state, "a guest's GPU:")
	}
}

// TestNVMLLost: one GPU that does not answer leaves the others readable.
func TestNVMLLost(t *testing.T) {
	fake := fakenvml.New(t, "H100-80:3")
	t.Setenv("FAKENVML_STATE", fake.State)
	proc, err := simhost.New([]byte("-- proc/driver/nvidia/gpus/0000:17:00.0/x --\n-- proc/driver/nvidia/gpus/0000:1f:00.0/x --\n-- proc/driver/nvidia/gpus/0000:27:00.0/x --\n"))
	must.OK(t, err)
	h := local.LiveWithNVML(fake.Library, proc.Files)
	lost := func(why string) {
		t.Helper()
		d := readDriver(t, h)
		must.That(t, len(d.GPUs) == 3, "%d GPUs", len(d.GPUs))
		g := d.GPUs[1]
		check.That(t, g.Address == gpu1 && g.Index == 1 && g.Lost == why && g.UUID == "" && !g.MIG && g.Profiles == nil, "%+v", g)
		for _, i := range []int{0, 2} {
			if d.GPUs[i].Lost != "" || d.GPUs[i].UUID == "" || len(d.GPUs[i].Profiles) != 7 {
				t.Errorf("%+v", d.GPUs[i])
			}
		}
	}

	fake.Lose(1)
	lost("it has fallen off the bus")
	refused := (*host.GPUError)(nil)
	err = h.SetMIGMode(t.Context(), gpu1, true)
	check.That(t, errors.As(err, &refused) && refused.GPU == gpu1, "%v", err)
	fake.Reboot()
	fake.Do("fail", "--call", "nvmlDeviceGetUUID", "--gpu", "1", "--code", "GPU_IS_LOST", "--nth", "0") // while it is being read
	lost("it has fallen off the bus")
	fake.Heal()
	for _, call := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetPciInfo_v3"} {
		fake.Do("fail", "--call", call, "--gpu", "1", "--code", "UNKNOWN", "--nth", "0")
		lost(strings.TrimSuffix(call, "_v3") + " answers UNKNOWN")
		fake.Heal()
	}
}

// TestNVMLRefuses: what cannot be read is an error that says what to do, never a machine without
// GPUs or instances.
func TestNVMLRefuses(t *testing.T) {
	h := openFake(t, "H100-80")
	none := (*host.NoDriver)(nil)
	for code, says := range map[string]string{
		"DRIVER_NOT_LOADED":       "is not loaded",
		"NO_PERMISSION":           "no permission",
		"LIB_RM_VERSION_MISMATCH": "the library of",
		"UNKNOWN":                 "UNKNOWN",
		"GPU_IS_LOST":             "GPU_IS_LOST",
	} {
		h.fake.Init(code)
		_, err := h.Driver(t.Context())
		check.That(t, errors.As(err, &none) && strings.Contains(none.Why, says) && none.Try != "", "%s: %v", code, err)
		err = h.SetPersistence(t.Context(), gpu0, true)
		check.That(t, errors.As(err, &none), "%s: %v", code, err)
	}

	h.fake.Init("SUCCESS")
	must.OK(t, h.SetMIGMode(t.Context(), gpu0, true))
	h.fake.Fail("nvmlDeviceGetGpuInstances", 0, "NO_PERMISSION")
	_, err := h.Driver(t.Context())
	check.That(t, errors.As(err, &none) && strings.Contains(none.Try, "root"), "%v", err)
	h.fake.Heal()
	h.fake.Fail("nvmlDeviceGetCount_v2", 0, "UNKNOWN")
	_, err = h.Driver(t.Context())
	check.That(t, errors.As(err, &none), "%v", err)
	h.fake.Heal()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	h.fake.Forget()
	_, err = h.Driver(cancelled)
	check.That(t, errors.Is(err, context.Canceled), "%v", err)
	_, err = h.CreateInstance(cancelled, gpu0, 9, host.Span{Start: 0, Size: 4})
	check.That(t, errors.Is(err, context.Canceled) && h.fake.Dump().Mutations == 0, "%v", err)
	gone := local.LiveWithNVML(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), nil)
	_, err = gone.Driver(t.Context())
	check.That(t, errors.As(err, &none) && strings.Contains(none.Error(), "libnvidia-ml.so.1"), "%v", err)
}

// TestNVMLLate: a call that says it failed may have done its work; the next look says so.
func TestNVMLLate(t *testing.T) {
	h := openFake(t, "A30")
	h.fake.Set(0, "self_reset=1")
	must.OK(t, h.SetMIGMode(t.Context(), gpu0, true))
	check.That(t, readDriver(t, h).GPUs[0].Mode, "A GPU that resets itself has no MIG mode")
	h.fake.FailLate("", 1, "TIMEOUT")
	_, err := h.CreateInstance(t.Context(), gpu0, 0, host.Span{Start: 0, Size: 4})
	refused := (*host.GPUError)(nil)
	check.That(t, errors.As(err, &refused) && *refused == (host.GPUError{
		Call: "nvmlDeviceCreateGpuInstanceWithPlacement",
		GPU:  gpu0,
		Code: "TIMEOUT",
	}), "%v", err)
	in := readDriver(t, h).GPUs[0].Instances
	check.That(t, len(in) == 1 && in[0].Compute == nil, "%+v", in)
}

// TestNVMLLacks works with a library for each symbol that lacks it. To call one that is not there
// ends the process, so children do it. A library without what every session calls is not a driver's.
func TestNVMLLacks(t *testing.T) {
	if library := os.Getenv("GPUADM_TEST_NVML"); library != "" {
		useNVML(t, local.LiveWithNVML(library, nil))
		return
	}
	fake := fakenvml.New(t, "A100-40")
	file := must.Get(elf.Open(fake.Library))(t)
	defer file.Close()
	var lacks []string
	for _, s := range must.Get(file.DynamicSymbols())(t) {
		if strings.HasPrefix(s.Name, "nvml") && s.Section != elf.SHN_UNDEF {
			lacks = append(lacks, s.Name)
		}
	}

	check.That(t, len(lacks) >= 40, "the fake has few symbols: %d", len(lacks))
	for _, name := range lacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := must.Get(os.ReadFile(fake.Library))(t)
			// The name in the table of names; its hash stays, so the loader looks here and finds
			// another name.
			data := bytes.ReplaceAll(whole, []byte("\x00"+name+"\x00"), []byte("\x00_"+name[1:]+"\x00"))
			check.That(t, !bytes.Equal(whole, data), "the fake has no %s", name)
			library, state := filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), fakenvml.New(t, "A100-40").State
			must.OK(t, os.WriteFile(library, data, 0o755))
			child := exec.Command(os.Args[0], "-test.run=^TestNVMLLacks$", "-test.v")
			child.Env = append(os.Environ(), "GPUADM_TEST_NVML="+library, "GPUADM_TEST_LACKS="+name, "FAKENVML_STATE="+state)
			said, err := child.CombinedOutput()
			check.That(t, err == nil && bytes.Contains(said, []byte("--- PASS: TestNVMLLacks")), "%v\n%s", err, said)
		})
	}
}

// useNVML makes each call that there is, and takes a refusal for an answer.
func useNVML(t *testing.T, h host.Host) {
	ctx, none := t.Context(), (*host.NoDriver)(nil)
	d, err := h.Driver(ctx)
	if errors.As(err, &none) {
		check.That(t, none.Code == "FUNCTION_NOT_FOUND" && strings.Contains(none.Why, os.Getenv("GPUADM_TEST_LACKS")) && none.Try != "", "%+v", none)
		return
	}
	must.OK(t, err)
	must.That(t, len(d.GPUs) == 1, "%+v", d)
	_ = h.SetPersistence(ctx, gpu0, true)
	_ = h.SetMIGMode(ctx, gpu0, true)
	id, err := h.CreateInstance(ctx, gpu0, 9, host.Span{Start: 0, Size: 4})
	compute, within := h.CreateCompute(ctx, gpu0, id, 0, host.Span{Size: 1})
	_ = must.Get(h.Driver(ctx))(t)
	for _, err := range []error{err, within, h.DestroyCompute(ctx, gpu0, id, compute), h.DestroyInstance(ctx, gpu0, id)} {
		refused := (*host.GPUError)(nil)
		check.That(t, err == nil || errors.As(err, &refused), "%v", err)
	}
}

// BenchmarkDriver reads eight GPUs, partitioned and not, over a library that answers at once.
func BenchmarkDriver(b *testing.B) {
	for _, spec := range []string{"T4:8", "H100-80:8"} {
		b.Run(spec, func(b *testing.B) {
			h := openFake(b, spec)
			h.fake.Forget()
			readings := 0
			for b.Loop() {
				must.Get(h.Driver(b.Context()))(b)
				readings++
			}

			calls := 0
			for _, n := range h.fake.Dump().Counts {
				calls += n
			}
			b.ReportMetric(float64(calls)/float64(readings), "calls/op")
		})
	}

	b.Run("H100-80:8 with 56 instances", func(b *testing.B) {
		h := openFake(b, "H100-80:8")
		fill(b, h)
		for b.Loop() {
			must.Get(h.Driver(b.Context()))(b)
		}
	})
}

// fill partitions all GPUs into sevenths.
func fill(b *testing.B, h host.Host) {
	d, err := h.Driver(b.Context())
	for _, g := range d.GPUs {
		err = errors.Join(err, h.SetMIGMode(b.Context(), g.Address, true))
		for start := range 7 {
			id, made := h.CreateInstance(b.Context(), g.Address, 19, host.Span{
				Start: start,
				Size:  1,
			})
			_, within := h.CreateCompute(b.Context(), g.Address, id, 0, host.Span{})
			err = errors.Join(err, made, within)
		}
	}

	must.OK(b, err)
}

// TestNVMLKept: calls that share a session ask for what changes of partitions need, and still notice
// a GPU that is lost.
func TestNVMLKept(t *testing.T) {
	h := openFake(t, "A100-40:2")
	ctx, end := host.KeepDriver(t.Context())
	defer end()
	must.Get(h.Driver(ctx))(t)

	h.fake.Do("set", "--gpu", "0", "persistence=1")
	h.fake.Forget()
	d := must.Get(h.Driver(ctx))(t)
	check.That(t, d.GPUs[0].Persistent && d.GPUs[0].MIG && !d.GPUs[0].Mode, "%+v", d.GPUs[0])
	for call := range h.fake.Dump().Counts {
		isHealth := slices.ContainsFunc([]string{"Ecc", "Remapped", "Clocks", "Fabric", "Virtualization"}, func(word string) bool {
			return strings.Contains(call, word)
		})
		check.That(t, !isHealth, "a change of partitions asks %s", call)
	}

	h.fake.Forget()
	must.OK(t, h.SetMIGMode(ctx, gpu0, true))
	must.Get(h.Driver(ctx))(t)
	id := must.Get(h.CreateInstance(ctx, gpu0, 19, host.Span{Start: 0, Size: 1}))(t)
	must.Get(h.CreateCompute(ctx, gpu0, id, 0, host.Span{}))(t)
	again := h.fake.Dump().Counts["nvmlDeviceGetHandleByPciBusId_v2"]
	check.Equal(t, again, 0, "handles that the session has, asked once more:")

	h.fake.Lose(1)
	d = must.Get(h.Driver(ctx))(t)
	check.Equal(t, d.GPUs[0].Lost, "it has fallen off the bus", "a GPU without an address:")
}
