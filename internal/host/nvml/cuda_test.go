//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestMain lets this binary be the child that starts CUDA.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == DriverVerb {
		select {} // as a driver that hangs
	}
	if len(os.Args) != 3 || os.Args[1] != CUDAVerb {
		os.Exit(m.Run())
	}
	if err := StartCUDA(os.Args[2]); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// cudaTest is the door over a libcuda that fails where the test says.
type cudaTest struct {
	*CUDA
	t       *testing.T
	fake    *fakenvml.Fake
	started atomic.Int32
}

func newCUDATest(t *testing.T, gpus string) *cudaTest {
	t.Helper()
	c := &cudaTest{t: t, fake: fakenvml.New(t, gpus)}
	disk := must.Get(files.OpenRoot("/"))(t)
	dir := t.TempDir()
	c.CUDA = NewCUDA(files.New(disk))
	c.question = cudaQuestion{[]string{filepath.Join(dir, "none.so"), c.fake.CUDA}, []string{filepath.Join(dir, "none"), "/dev/null"}}
	c.env, c.record = []string{"FAKENVML_STATE=" + c.fake.State}, filepath.Join(dir, "record.json")
	c.children = func() { c.started.Add(1) }
	// A slow machine is not a driver that hangs: only the test that hangs lets the time be over.
	c.after = func(time.Duration) <-chan time.Time { return nil }
	return c
}

// goes says what goes wrong from now on.
func (c *cudaTest) goes(wrong string) {
	c.t.Helper()
	must.OK(c.t, os.WriteFile(c.fake.State+".cuda", []byte(wrong+"\n"), 0o644))
}

func (c *cudaTest) asked(of string, shown ...[]string) []host.CUDA {
	c.t.Helper()
	got := must.Get(c.Ask(c.t.Context(), of, shown))(c.t)
	return got
}

func (c *cudaTest) uuids() (whole, mig []string) {
	for _, g := range c.fake.Dump().GPUs {
		if g.Mode == 0 {
			whole = append(whole, g.UUID)
		}
		for _, in := range g.Instances {
			for _, ci := range in.Compute {
				mig = append(mig, ci.UUID)
			}
		}
	}
	return whole, mig
}

// TestCUDAStarts: each failure is reported, and only devices without one count as working.
func TestCUDAStarts(t *testing.T) {
	c := newCUDATest(t, "H100-80:2")
	whole, _ := c.uuids()
	for wrong, want := range map[string]host.CUDA{
		"":         {Devices: 2},
		"init 802": {Code: 802, Name: "CUDA_ERROR_SYSTEM_NOT_READY"},
		"init 999": {Code: 999, Name: "CUDA_ERROR_UNKNOWN"},
		"init 36":  {Code: 36},
		"crash":    {Ended: "it ended without an answer: signal: segmentation fault"},
		"garbage":  {Ended: "it ended without an answer"},
	} {
		c.goes(wrong)
		got := c.asked(wrong, whole)[0]
		if want.Shown = whole; want.Ended == "" {
			want.Library = c.fake.CUDA
		}
		check.That(t, fmt.Sprintf("%+v", got) == fmt.Sprintf("%+v", want), "%q:\n%+v, want\n%+v", wrong, got, want)
		if works := wrong == ""; got.Works() != works {
			t.Errorf("%q works: %t", wrong, !works)
		}
	}
}

// TestCUDALacks: without the device of unified memory, or without the library, nothing works,
// whatever the rest says.
func TestCUDALacks(t *testing.T) {
	c := newCUDATest(t, "H100-80")
	whole, _ := c.uuids()
	file := filepath.Join(t.TempDir(), "nvidia-uvm")
	c.question.UVM = []string{file}
	got := c.asked("", whole)[0]
	check.That(t, !got.Works() && got.NoUVM == "no such file or directory" && got.Devices == 1, "without the device: %+v", got)
	must.OK(t, os.WriteFile(file, nil, 0o600))
	got = c.asked("", whole)[0]
	check.That(t, !got.Works() && got.NoUVM == "it is not a device", "with a file in its place: %+v", got)
	c.question.UVM = []string{"/dev/null"}
	c.question.Libraries = []string{"libcuda-none.so.1", "/none/libcuda.so.1"}
	got = c.asked("", whole)[0]
	check.That(t, !got.Works() && strings.Contains(got.NoLibrary, "libcuda-none.so.1: cannot open shared object file"), "without the library: %+v", got)
	c.question.Libraries = []string{c.fake.Library} // NVML's, say by a link that leads astray
	got = c.asked("", whole)[0]
	check.That(t, !got.Works() && got.NoLibrary == "libcuda.so.1 has no cuInit", "with another library: %+v", got)
}

// TestCUDAHangs: a child that does not answer is killed with its whole group once its 10 seconds
// are over.
func TestCUDAHangs(t *testing.T) {
	c := newCUDATest(t, "H100-80")
	whole, _ := c.uuids()
	c.goes("hang")
	var pids []int
	c.after = func(limit time.Duration) <-chan time.Time {
		check.That(t, limit == 10*time.Second, "a child has %v", limit)
		over := make(chan time.Time)
		go func() {
			defer close(over)
			for { // it hangs from when it has said who it is
				if text, err := os.ReadFile(c.fake.State + ".cuda.pids"); err == nil {
					pids = make([]int, 2)
					_, _ = fmt.Sscan(string(text), &pids[0], &pids[1])
					return
				}

				time.Sleep(time.Millisecond)
			}
		}()
		return over
	}

	got := c.asked("", whole)[0]
	check.That(t, !got.Works() && got.Ended == "it gave no answer within 10s and was killed", "%+v", got)
	for _, pid := range pids {
		for alive(pid) {
			time.Sleep(time.Millisecond)
		}
	}

	_, err := os.Stat(c.record)
	check.That(t, err != nil, "it is remembered")
}

// TestCUDAStopped: a run that is ended does not wait for CUDA.
func TestCUDAStopped(t *testing.T) {
	c := newCUDATest(t, "H100-80")
	whole, _ := c.uuids()
	c.goes("hang")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	c.children = func() { cancel(stop) }
	got, err := c.Ask(ctx, "", [][]string{whole})
	check.That(t, errors.Is(err, stop), "%+v %v", got, err)
}

// TestCUDAPartitions: a process sees one MIG device, and no GPU beside it, so each is asked about
// by itself; a GPU in MIG mode without instances has no devices, which is not a failure.
func TestCUDAPartitions(t *testing.T) {
	c := newCUDATest(t, "H100-80:3")
	t.Setenv("FAKENVML_STATE", c.fake.State)
	h, ctx := New(c.files, c.fake.Library), t.Context()
	must.OK(t, h.SetMIGMode(ctx, "0000:17:00.0", true))
	whole, mig := c.uuids()
	must.That(t, len(whole) == 2 && len(mig) == 0, "%v: %v", whole, mig)
	got := c.asked("", whole, []string{})
	check.That(t, got[0].Works() && got[0].Devices == 2 && got[1].Works() && got[1].Code == host.CUDANoDevice, "%+v", got)
	for _, at := range []int{0, 1} {
		id, err := h.CreateInstance(ctx, "0000:17:00.0", 19, host.Span{Start: at, Size: 1})
		if err == nil {
			_, err = h.CreateCompute(ctx, "0000:17:00.0", id, 0, host.Span{})
		}
		must.OK(t, err)
	}

	if whole, mig = c.uuids(); len(mig) != 2 {
		t.Fatal(mig)
	}
	for _, a := range c.asked("", whole, mig[:1], mig[1:]) {
		check.That(t, a.Works(), "%+v", a)
	}
	if got := c.asked("", mig)[0]; got.Works() || got.Devices != 1 {
		t.Errorf("two MIG devices in one process: %+v", got)
	}
	if got := c.asked("", []string{"MIG-gone"})[0]; got.Works() {
		t.Errorf("a MIG device that is gone: %+v", got)
	}
	if got := c.asked("", []string{whole[0], "GPU-gone"})[0]; got.Works() || got.Devices != 1 {
		t.Errorf("a GPU that is gone: %+v", got)
	}
}

// TestCUDARemembered: a second look starts nothing, until something is not what it was. What does
// not work is looked at each time.
func TestCUDARemembered(t *testing.T) {
	c := newCUDATest(t, "H100-80:2")
	whole, _ := c.uuids()
	looks := func(what string, children int32, works bool, of string, shown ...[]string) {
		t.Helper()
		before := c.started.Load()
		got := c.asked(of, shown...)
		n := c.started.Load() - before
		check.That(t, n == children, "%s: %d children, want %d", what, n, children)
		check.That(t, !slices.ContainsFunc(got, func(a host.CUDA) bool {
			return a.Works() != works
		}), "%s: %+v", what, got)
	}

	c.goes("init 802")
	looks("a failure", 1, false, "580", whole)
	looks("a failure again", 1, false, "580", whole)
	c.goes("")
	looks("the first success", 1, true, "580", whole)
	looks("the second", 0, true, "580", whole)
	looks("another driver", 1, true, "590", whole)
	looks("other devices", 2, true, "590", whole, whole[:1])
	looks("the same", 0, true, "590", whole, whole[:1])

	text := must.Get(os.ReadFile(c.record))(t)
	boot := must.Get(os.ReadFile("/proc/sys/kernel/random/boot_id"))(t)
	spoil := func(what, old, now string) {
		t.Helper()
		bad := strings.Replace(string(text), old, now, 1)
		must.That(t, bad != string(text), "%s: %q is not in %s", what, old, text)
		must.OK(t, os.WriteFile(c.record, []byte(bad), 0o644))
		looks(what, 2, true, "590", whole, whole[:1])
	}

	spoil("another boot", strings.TrimSpace(string(boot)), "00000000-0000-4000-8000-000000000000")
	spoil("another load of the module", `"modules":["`, `"modules":["7:7`)
	spoil("a driver container that was started again", `"driver":"`, `"driver":"7:7`)
	spoil("another library", `"file":"`, `"file":"7`)
	spoil("another number of devices", `"devices":[2`, `"devices":[3`)
	spoil("cut short", `]}`, ``)

	c.goes("init 802") // all that is read again is as it was, so nothing is started
	looks("remembered", 0, true, "590", whole, whole[:1])
	must.OK(t, os.Chmod(c.record, 0o666))
	looks("a record that all users can write to", 2, false, "590", whole, whole[:1])
	must.OK(t, os.Chmod(c.record, 0o644))
	looks("a record again", 0, true, "590", whole, whole[:1])
	c.question.UVM = []string{filepath.Join(t.TempDir(), "gone")}
	looks("without the device", 2, false, "590", whole, whole[:1])
}

// alive says whether a process is more than a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ") && syscall.Kill(pid, 0) == nil
}

// TestDriverHangs: a child that does not answer is not waited for.
func TestDriverHangs(t *testing.T) {
	disk := must.Get(files.OpenRoot("/"))(t)
	_, err := New(files.New(disk)).DriverWithin(t.Context(), time.Millisecond)
	none := (*host.NoDriver)(nil)
	must.That(t, errors.As(err, &none) && none.Code == host.Overdue, "%v", err)
}
