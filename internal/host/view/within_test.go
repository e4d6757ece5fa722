// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// hanging is a machine on which all but the table of mounts hangs.
type hanging struct {
	host.View
	for_  chan struct{}
	asked atomic.Int32
}

func (h *hanging) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	h.asked.Add(1)
	<-ctx.Done()
	return nil, &host.CommandError{
		Argv:  argv,
		Code:  -1,
		Cause: context.Cause(ctx),
	}
}

func (h *hanging) Unit(context.Context, string) (host.Unit, error) {
	h.asked.Add(1)
	<-h.for_
	return host.Unit{}, nil
}

func (h *hanging) Stat(string) (host.Info, error) {
	h.asked.Add(1)
	<-h.for_
	return host.Info{}, nil
}

func (h *hanging) Call(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	h.asked.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A daemon that hangs is not asked again, and its socket is there all the same.
func TestWithinSilentDaemon(t *testing.T) {
	const socket = "/run/containerd/containerd.sock"
	synctest.Test(t, func(t *testing.T) {
		n := must.Get(simhost.New([]byte("-- " + socket[1:] + " --\n")))(t)
		h := &hanging{View: n}
		v := Within(h)
		for range 3 {
			_, err := v.Call(t.Context(), socket, "Status", nil)
			check.That(t, err != nil, "it answers")
		}
		check.Equal(t, h.asked.Load(), 1, "calls")

		_, err := v.Lstat(socket)
		check.OK(t, err)
	})
}

// Nothing is waited for without a limit: the error names what does not answer, and it is not asked
// a second time.
func TestWithinLimits(t *testing.T) {
	const mounts = "-- proc/self/mounts --\n/dev/vda1 / ext4 rw 0 0\nnas:/data /mnt/data nfs4 rw 0 0\n"
	synctest.Test(t, func(t *testing.T) {
		n := must.Get(simhost.New([]byte(mounts)))(t)
		h := &hanging{View: n, for_: make(chan struct{})}
		v := Within(h)
		for _, tt := range []struct {
			ask   func() error
			names string
			limit time.Duration
		}{
			{func() error { _, err := v.Ask(t.Context(), "journalctl"); return err }, "journalctl", soon().program},
			{func() error { _, err := v.Ask(t.Context(), "dpkg-query"); return err }, "dpkg-query", soon().packager},
			{func() error { _, err := v.Unit(t.Context(), "a.service"); return err }, "systemd", soon().systemd},
			{func() error { _, err := v.Stat("/mnt/data/kubelet/x"); return err }, "/mnt/data ", soon().file},
			{func() error { _, err := v.Stat("/proc/41/fd/1"); return err }, "/proc/41 ", soon().file},
		} {
			began := time.Now()
			h.asked.Store(0)
			for range 3 {
				err := tt.ask()
				must.That(t, err != nil, "%s answers", tt.names)
				says := err.Error()
				isNamed := strings.Contains(says, tt.names) && strings.Contains(says, tt.limit.String())
				check.That(t, isNamed, "%s: %v", tt.names, err)
			}

			took := time.Since(began)
			check.That(t, took == tt.limit && h.asked.Load() == 1, "%s: %v, asked %d times", tt.names, took, h.asked.Load())
		}

		_, err := v.ReadFile("/proc/self/mounts")
		check.That(t, err == nil, "others answer: %v", err)
		close(h.for_)
	})
}
