// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// cudaWorks is a CUDA that sees all that it is shown.
func cudaWorks(shown []string) host.CUDA {
	return host.CUDA{Library: "/usr/lib/libcuda.so.1", Devices: len(shown)}
}

// TestCUDAFaults: what keeps CUDA from starting keeps pods off, and the error says what to type.
func TestCUDAFaults(t *testing.T) {
	fabric := func(active string) string {
		return "[[unit]]\nname = \"nvidia-fabricmanager.service\"\nactive = \"" + active + "\"\n"
	}
	for name, c := range map[string]struct {
		answer host.CUDA
		units  string
		os     facts.OS
		waits  bool
	}{
		"802":                        {answer: host.CUDA{Code: 802, Name: "CUDA_ERROR_SYSTEM_NOT_READY"}},
		"802, the daemon has failed": {answer: host.CUDA{Code: 802}, units: fabric("failed")},
		"802, the daemon runs":       {answer: host.CUDA{Code: 802}, units: fabric("active"), waits: true},
		"999":                        {answer: host.CUDA{Code: 999, Name: "CUDA_ERROR_UNKNOWN"}},
		"no name":                    {answer: host.CUDA{Code: 36}},
		"hangs":                      {answer: host.CUDA{Ended: "it gave no answer within 10s and was killed"}},
		"crashes":                    {answer: host.CUDA{Ended: "it ended without an answer: signal: segmentation fault"}},
		"no device of uvm":           {answer: host.CUDA{NoUVM: "no such file or directory", Code: 802}},
		"uvm alone":                  {answer: host.CUDA{NoUVM: "permission denied", Devices: 2}},
		"fewer":                      {answer: host.CUDA{Devices: 1}},
		"more":                       {answer: host.CUDA{Devices: 3}},
		"no library, Debian":         {answer: host.CUDA{NoLibrary: "libcuda.so.1: cannot open shared object file"}, os: facts.OS{ID: "debian"}},
		"no library, Ubuntu":         {answer: host.CUDA{NoLibrary: "x"}, os: facts.OS{ID: "ubuntu", Like: []string{"debian"}}},
		"no library, Rocky":          {answer: host.CUDA{NoLibrary: "x"}, os: facts.OS{ID: "rocky", Like: []string{"rhel", "centos"}}},
		"no library, another":        {answer: host.CUDA{NoLibrary: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec, "-- sim.toml --\n"+c.units)
			a.facts.OS = c.os
			a.CUDAAnswers(func([]string) host.CUDA { return c.answer })
			code := trouble.Code("ready: CUDA")
			if c.waits {
				code = fabricForming
			}
			a.faulted(name, code)
		})
	}
}

// TestCUDAShown: CUDA is shown all whole GPUs at once, each MIG device alone, and nothing of a GPU in
// MIG mode without instances.
func TestCUDAShown(t *testing.T) {
	whole := func(id string) host.GPU { return host.GPU{UUID: id} }
	cut := func(id string, devices ...string) host.GPU {
		g := host.GPU{UUID: id, Mode: true, Instances: []host.Instance{{ID: 9}}} // one without a compute instance
		for i, uuid := range devices {
			g.Instances = append(g.Instances, host.Instance{
				ID:      i,
				Compute: []host.ComputeInstance{{ID: 3, UUID: uuid}},
			})
		}

		return g
	}

	lost := host.GPU{UUID: "GPU-lost", Lost: "it has fallen off the bus"}
	for want, gpus := range map[string][]host.GPU{
		"[[GPU-a GPU-b]]":           {whole("GPU-a"), lost, whole("GPU-b")},
		"[[GPU-a] [MIG-b]]":         {whole("GPU-a"), cut("GPU-b", "MIG-b", "MIG-c")},
		"[[MIG-b] [MIG-c]]":         {cut("GPU-b", "MIG-b"), cut("GPU-c", "MIG-c")},
		"[[GPU-a]]":                 {cut("GPU-b"), whole("GPU-a")},
		"[[]]":                      {cut("GPU-b")},
		"[[MIG-GPU-b/0/3]]":         {cut("GPU-b", "")},
		"[[GPU-a] [MIG-GPU-b/0/3]]": {cut("GPU-b", ""), whole("GPU-a")},
	} {
		check.Equal(t, fmt.Sprint(host.Driver{GPUs: gpus}.Shown()), want, "got")
	}
}

// TestCUDAWaitsForFabric: while GPUs register with the fabric, gpuadm does not start CUDA, which would
// only say that it is not ready.
func TestCUDAWaitsForFabric(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.facts.Driver.GPUs[1].Fabric.State = "in-progress"
	a.CUDAAnswers(func([]string) host.CUDA {
		t.Error("CUDA was started")
		return host.CUDA{}
	})
	_, err := a.engine().Apply(a.ctx, a)
	check.That(t, trouble.Passes(err), "%v", err)
}

// TestCUDAValidFor: after each change that may keep CUDA from starting, an earlier answer is no longer
// valid.
func TestCUDAValidFor(t *testing.T) {
	a := apiFixture(t, apiSpec, "-- sim.toml --\n[[unit]]\nname = \"nvidia-fabricmanager.service\"\nactive = \"active\"\n")
	validFor := func() string { return must.Get(cudaValidFor(a.ctx, a, a.facts))(t) }

	seen := map[string]string{validFor(): "at first"}
	for _, c := range []struct {
		what string
		set  func()
	}{
		{"another driver", func() { a.facts.Driver.Version = "590.1" }},
		{"another library of NVML", func() { a.facts.Driver.NVML = "590.1" }},
		{"a GPU is lost", func() { a.facts.Driver.GPUs[0].Lost = "it has fallen off the bus" }},
		{"MIG mode", func() { a.facts.Driver.GPUs[1].Mode = true }},
		{"the fabric", func() { a.facts.Driver.GPUs[1].Fabric.State = "completed" }},
		{"NVSwitches", func() { a.facts.GPUs = append(a.facts.GPUs, facts.PCI{Vendor: "10de", Class: "068000"}) }},
		{"another process of the daemon", func() {
			a.Advance(time.Minute)
			must.OK(t, a.SetUnit(a.ctx, fabricManager, host.UnitChange{Job: "restart"}))
		}},
	} {
		c.set()
		now := validFor()
		before, isValid := seen[now]
		check.That(t, !isValid, "%s is as %s", c.what, before)
		seen[now] = c.what
	}
}
