// SPDX-License-Identifier: Apache-2.0

// Package fakenvml simulates a machine with NVIDIA GPUs: a library of NVML's name that unmodified
// binaries load, a fake nvidia-smi, and a tool that breaks things. All share one state file, so
// what one process does the next one finds. A test makes a machine in one line:
//
//	gpus := fakenvml.New(t, "H100-80:8,T4")
//	cmd.Env = append(os.Environ(), gpus.Env()...)
package fakenvml

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Fake is a machine with a fake driver.
type Fake struct {
	Parts
	State string // path of the state file

	t testing.TB
}

// New makes a machine with the GPUs of spec, MODEL[:COUNT] with commas between, in the order of
// their PCI addresses (0000:17:00.0, 1f, 27, …). Its state file is removed with the test. The
// models are those of models.txt.
func New(t testing.TB, spec string) *Fake {
	t.Helper()
	f := &Fake{
		Parts: Build(t),
		State: filepath.Join(t.TempDir(), "fakenvml.state"),
		t:     t,
	}
	f.Do("new", "--gpus", spec)

	return f
}

// Env is the environment in which a process meets the fake driver: it loads the library and finds
// nvidia-smi in PATH.
func (f *Fake) Env() []string {
	return []string{
		"FAKENVML_STATE=" + f.State,
		"LD_LIBRARY_PATH=" + join(f.Dir, os.Getenv("LD_LIBRARY_PATH")),
		"PATH=" + join(f.Dir, os.Getenv("PATH")),
	}
}

func join(dir, path string) string {
	if path == "" {
		return dir
	}
	return dir + ":" + path
}

// Do runs the tool (see its usage: fakenvml without arguments) and returns what it printed.
func (f *Fake) Do(args ...string) string {
	f.t.Helper()
	cmd := exec.Command(f.Tool, args...)
	cmd.Env = append(os.Environ(), "FAKENVML_STATE="+f.State)
	var output strings.Builder
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("fakenvml %s: %v: %s", strings.Join(args, " "), err, output.String())
	}

	return string(out)
}

// Reboot restarts the machine: Hopper and later lose mode and instances, Ampere its instances;
// clients are gone.
func (f *Fake) Reboot() {
	f.t.Helper()
	f.Do("reboot")
}

// Fail lets the nth call of that name (from now; 1 is the next, 0 each) answer with a code: IN_USE.
// With an empty name it is the nth call of any kind that changes something. The call does nothing.
func (f *Fake) Fail(call string, nth int, code string) {
	f.t.Helper()
	f.Do(f.rule("fail", call, nth, "--code", code)...)
}

// FailLate is Fail, but the call does its work before it says that it failed.
func (f *Fake) FailLate(call string, nth int, code string) {
	f.t.Helper()
	f.Do(f.rule("fail", call, nth, "--code", code, "--late")...)
}

// Kill lets the process that makes the nth change die of SIGKILL before it.
func (f *Fake) Kill(nth int) {
	f.t.Helper()
	f.Do(f.rule("kill", "", nth)...)
}

// KillLate lets the process that makes the nth change die of SIGKILL right after it.
func (f *Fake) KillLate(nth int) {
	f.t.Helper()
	f.Do(f.rule("kill", "", nth, "--late")...)
}

func (f *Fake) rule(what, call string, nth int, more ...string) []string {
	args := append([]string{what, "--nth", fmt.Sprint(nth)}, more...)
	if call != "" {
		args = append(args, "--call", call)
	}

	return args
}

// Heal takes all Fail and Kill back.
func (f *Fake) Heal() {
	f.t.Helper()
	f.Do("heal")
}

// Hold lets a process use a GPU (gi -1), or the first compute instance of a GPU instance.
func (f *Fake) Hold(gpu, gi, pid int) {
	f.t.Helper()
	args := []string{"client", "add", "--gpu", fmt.Sprint(gpu), "--pid", fmt.Sprint(pid)}
	if gi >= 0 {
		args = append(args, "--gi", fmt.Sprint(gi))
	}
	f.Do(args...)
}

// EndUse ends a process's use of all GPUs.
func (f *Fake) EndUse(pid int) {
	f.t.Helper()
	f.Do("client", "rm", "--pid", fmt.Sprint(pid))
}

// Lose lets a GPU fall off the bus, until the next reboot.
func (f *Fake) Lose(gpu int) {
	f.t.Helper()
	f.Do("lost", "--gpu", fmt.Sprint(gpu))
}

// Set sets NAME=NUMBER on a GPU; the names are those of State.GPUs[].Settings.
func (f *Fake) Set(gpu int, pairs ...string) {
	f.t.Helper()
	f.Do(append([]string{"set", "--gpu", fmt.Sprint(gpu)}, pairs...)...)
}

// PassThrough makes a GPU one that is passed through to a virtual machine: it does not reset itself
// to change its MIG mode.
func (f *Fake) PassThrough(gpu int) {
	f.t.Helper()
	f.Set(gpu, "self_reset=0")
}

// Xid raises an Xid on a GPU.
func (f *Fake) Xid(gpu, code int) {
	f.t.Helper()
	f.Do("xid", "--gpu", fmt.Sprint(gpu), "--code", fmt.Sprint(code))
}

// Latency makes each change take ms milliseconds; other calls take none.
func (f *Fake) Latency(ms int) {
	f.t.Helper()
	f.Do("latency", "--mutations-only", "--ms", fmt.Sprint(ms))
}

// Init lets nvmlInit answer with a code: LIB_RM_VERSION_MISMATCH, SUCCESS.
func (f *Fake) Init(code string) {
	f.t.Helper()
	f.Do("driver", "--init", code)
}

// Forget sets counters and log back to nothing.
func (f *Fake) Forget() {
	f.t.Helper()
	f.Do("forget")
}

// SMI runs the fake nvidia-smi and returns what it printed and its exit code.
func (f *Fake) SMI(args ...string) (string, int) {
	f.t.Helper()
	cmd := exec.Command(f.NvidiaSMI, args...)
	cmd.Env = append(os.Environ(), f.Env()...)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		f.t.Fatalf("nvidia-smi: %v", err)
	}

	return string(out), cmd.ProcessState.ExitCode()
}

// Dump is the whole state.
func (f *Fake) Dump() State {
	f.t.Helper()
	var s State
	if err := json.Unmarshal([]byte(f.Do("dump")), &s); err != nil {
		f.t.Fatalf("fakenvml dump: %v", err)
	}

	return s
}
