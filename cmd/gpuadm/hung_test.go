// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// hungHost is a machine on which one of these does not answer: the driver, a program, systemd, the
// engine, or the API server. The limits are those of the running machine: internal/host.
type hungHost struct {
	*simhost.Node
	what string
	hung *atomic.Bool  // the driver hangs: internal/host/nvml does not call it again
	pace time.Duration // how long each answer takes of what does not hang
}

func hang(ctx context.Context, limit time.Duration) error {
	ctx, end := context.WithTimeoutCause(ctx, limit, host.OverLimit{Limit: limit})
	defer end()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (h hungHost) Driver(ctx context.Context) (host.Driver, error) {
	const limit = 30 * time.Second
	if h.what == "driver" {
		if h.hung.Swap(true) {
			return host.Driver{}, host.NoAnswer(limit)
		}
		if err := hang(ctx, limit); ctx.Err() != nil {
			return host.Driver{}, err
		}
		return host.Driver{}, host.NoAnswer(limit)
	}

	return h.Node.Driver(ctx)
}

func (h hungHost) DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error) {
	if h.what == "driver" {
		if err := hang(ctx, limit); ctx.Err() != nil {
			return host.Driver{}, err
		}
		return host.Driver{}, host.NoAnswer(limit)
	}

	time.Sleep(h.pace)
	return h.Node.Driver(ctx)
}

func (h hungHost) CUDA(ctx context.Context, of string, shown ...[]string) ([]host.CUDA, error) {
	return h.CUDAWithin(ctx, 10*time.Second, of, shown...)
}

func (h hungHost) CUDAWithin(
	ctx context.Context, limit time.Duration, of string, shown ...[]string,
) ([]host.CUDA, error) {
	if h.what != "CUDA" {
		return h.Node.CUDA(ctx, of, shown...)
	}
	if err := hang(ctx, limit); ctx.Err() != nil {
		return nil, err
	}
	return []host.CUDA{{Ended: "it gave no answer", Late: true}}, nil
}

func (h hungHost) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	if h.what == filepath.Base(argv[0]) {
		return nil, &host.CommandError{
			Argv:  argv,
			Code:  -1,
			Cause: hang(ctx, 30*time.Second),
		}
	}

	time.Sleep(h.pace)
	return h.Node.Ask(ctx, argv...)
}

func (h hungHost) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	if h.what == filepath.Base(argv[0]) {
		return nil, &host.CommandError{
			Argv:  argv,
			Code:  -1,
			Cause: hang(ctx, 30*time.Second),
		}
	}

	time.Sleep(h.pace)
	return h.Node.AskAbout(ctx, files, argv...)
}

func (h hungHost) Unit(ctx context.Context, name string) (host.Unit, error) {
	if h.what == "systemd" {
		return host.Unit{}, &host.UnitError{
			Verb:  "check",
			Unit:  name,
			Cause: hang(ctx, 30*time.Second),
		}
	}

	time.Sleep(h.pace)
	return h.Node.Unit(ctx, name)
}

func (h hungHost) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	hangs := map[string]string{
		"engine":        "/run/containerd/containerd.sock",
		"kubelet":       "/var/lib/kubelet/pod-resources/kubelet.sock",
		"device plugin": "/var/lib/kubelet/device-plugins/nvidia-gpu.sock",
	}
	if h.what == "engine" || h.what != "" && socket == hangs[h.what] {
		return nil, hang(ctx, 10*time.Second)
	}
	time.Sleep(h.pace)
	return h.Node.Call(ctx, socket, method, request)
}

func (h hungHost) AskWeb(w host.Web) (http.RoundTripper, error) {
	if h.what == "API server" {
		return silentServer{}, nil
	}
	return h.Node.AskWeb(w)
}

func (h hungHost) DoWeb(w host.Web) (http.RoundTripper, error) { return h.AskWeb(w) }

// silentServer takes a request, and does not answer.
type silentServer struct{}

func (silentServer) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// Nothing waits without a limit: each verb ends, whatever does not answer, and what only looks ends
// soon. The times are those of a clock that waits for nothing.
func TestNothingHangsAVerb(t *testing.T) {
	outsideBubble(t)

	looking := []string{
		"doctor", "doctor -o json", "status", "owners", "facts", "plan", "mig export", "bundle -o /bundle.tar.gz",
		"repair RUN-002 --dry-run", "repair KUB-007 -y", "repair CDI-001 -y", "repair RUN-001 -y",
		"gate",
	}
	changing := []string{"apply", "undo -y", "apply --boot"}
	silent := []string{"driver", "journalctl", "timedatectl", "systemd", "containerd", "engine", "API server"}
	for _, what := range silent {
		for _, line := range append(looking, changing...) {
			most := 25 * time.Second
			if line == "status" || line == "plan" || line == "gate" {
				most = 40 * time.Second
			}
			for _, changes := range changing {
				if line == changes {
					most = 8 * time.Minute // apply waits for an engine, and says so; boot tries again
				}
			}

			t.Run(what+"/"+line, func(t *testing.T) { hung(t, what, line, most) })
		}
	}
}

// Doctor waits two seconds for all that does not answer, and not two for each question: of eight GPUs it
// makes no more waits than of one. The times are those of a clock that waits for nothing.
func TestDoctorIsSoon(t *testing.T) {
	outsideBubble(t)
	for what, most := range map[string]time.Duration{
		"nothing": 0, "driver": soonEnough, "CUDA": soonEnough,
		"journalctl": soonEnough, "timedatectl": soonEnough, "systemd": soonEnough, "containerd": soonEnough,
		"engine": soonEnough, "API server": soonEnough, "kubelet": soonEnough, "device plugin": soonEnough,
	} {
		t.Run(what, func(t *testing.T) { hung(t, what, "doctor", most) })
	}
}

// soonEnough is less than the two seconds that doctor may take: the processor needs its time, too.
const soonEnough = doctor.Wait + 150*time.Millisecond

// All that does not answer has one limit, from doctor's start: on a machine that is slow, so that doctor
// asks some of it late, and where gpuadm's own gate keeps kubelet from starting, which asks all again.
func TestDoctorHasOneLimit(t *testing.T) {
	outsideBubble(t)
	silent := []string{"driver", "CUDA", "journalctl", "systemd", "containerd", "engine", "API server"}
	for _, what := range silent {
		t.Run("slow/"+what, func(t *testing.T) {
			hungWorld(t, what, "doctor", soonEnough, func(_ *incident.World, h *hungHost) {
				h.pace = 20 * time.Millisecond
			})
		})
		t.Run("gate/"+what, func(t *testing.T) {
			hungWorld(t, what, "doctor", soonEnough, func(w *incident.World, _ *hungHost) {
				holdsKubelet(w)
			})
		})
	}
}

// An operator who has time gives it to all: to the API server, too.
func TestDoctorWaits(t *testing.T) {
	outsideBubble(t)
	for _, what := range []string{"driver", "journalctl", "systemd", "engine", "API server"} {
		_, took := hungWorld(t, what, "doctor --wait 9s", time.Minute, func(*incident.World, *hungHost) {})
		check.That(t, took >= 8*time.Second, "%s hangs: doctor took %v", what, took)
	}
}

// holdsKubelet has gpuadm's gate keep kubelet from starting.
func holdsKubelet(w *incident.World) {
	const dropIn = "/etc/systemd/system/kubelet.service.d/50-gpuadm.conf"
	w.Put(strings.TrimPrefix(dropIn, "/"), "[Service]\nExecCondition=/usr/sbin/gpuadm gate\n")
	w.Fails("kubelet")
}

// outsideBubble starts the goroutine of the process that waits for signals: it must not begin in the
// bubble of a test.
func outsideBubble(t *testing.T) {
	t.Helper()
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	t.Cleanup(func() { signal.Stop(c) })
}

// hung runs a command line while something hangs, and wants it to end in time.
func hung(t *testing.T, what, line string, most time.Duration) {
	t.Helper()
	code, _ := hungWorld(t, what, line, most, func(*incident.World, *hungHost) {})
	isProgram := what == "journalctl" || what == "timedatectl" || what == "containerd"
	if line == "doctor" && isProgram { // it shows nothing of the machine
		check.Equal(t, code, exitAgain, "%s hangs: exit code of %s", what, line)
	}
}

// hungWorld is hung on a machine that the caller has changed.
func hungWorld(
	t *testing.T, what, line string, most time.Duration, change func(*incident.World, *hungHost),
) (code int, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := incident.Joined(t, true)
		spec := "format = 1\n[runtime]\n"
		if what != "API server" { // whose answer several goroutines await under one lock
			spec += "[node]\nlabels = { a = \"b\" }\n"
		}
		w.Put("etc/gpuadm/node.toml", spec)
		switch what { // doctor asks these where another one does not say it
		case "kubelet":
			w.Server.Fail(kubesim.Fault{Status: http.StatusInternalServerError, Times: -1})
		case "device plugin":
			w.Remove("proc/4711")
		}

		h := hungHost{what: what, hung: new(atomic.Bool)}
		change(w, &h)
		h.Node = w.Node()
		var out bytes.Buffer
		e := envOn(h.Node, &out)
		e.open = func(string, commands.Follow) (host.Host, error) { return h, nil }
		began := time.Now()
		code = run(t.Context(), e, strings.Fields(line))
		took = time.Since(began)
		t.Logf("%-12s %-30s %8v exit %d", what, line, took, code)
		check.That(t, took <= most, "%s hangs: %s took %v\n%s", what, line, took, &out)
	})
	return code, took
}
