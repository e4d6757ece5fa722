// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// engineOfPods answers as a container engine with pods of one container each does.
type engineOfPods struct {
	mu      sync.Mutex
	running []string
	stubborn,
	down bool
	calls []string
	seen  func() // at each call that stops something
}

func (e *engineOfPods) answer(method string, request []byte) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, syscall.ECONNREFUSED
	}
	verb := method[strings.LastIndex(method, "/")+1:]
	var id string
	_ = protoFields(request, func(n protowire.Number, value []byte) error { id = string(value); return nil })
	var answer []byte
	for _, name := range e.running {
		item := protoText(1, name)
		if verb == "ListPodSandbox" {
			item = protowire.AppendBytes(protowire.AppendTag(item, 2, protowire.BytesType), append(protoText(1, name), protoText(3, "default")...))
		}
		answer = protowire.AppendBytes(protowire.AppendTag(answer, 1, protowire.BytesType), item)
	}
	switch verb {
	case "ListPodSandbox", "ListContainers":
		return answer, nil
	case "StopContainer":
		if n, _, _ := protowire.ConsumeField(request); n != 1 || !strings.HasSuffix(string(request), "\x10\x1e") {
			return nil, errors.New("no grace of 30 s")
		}
	case "StopPodSandbox":
		if e.stubborn {
			return nil, errors.New("it does not want to")
		}
		e.running = slices.DeleteFunc(e.running, func(o string) bool { return o == id })
	}
	e.calls = append(e.calls, verb+" "+id)
	if e.seen != nil {
		e.seen()
	}
	return nil, nil
}

const podsSocket = "/run/containerd/containerd.sock"

// TestUndoEndsPods: what kubelet has left running is ended once kubelet has stopped, before the certificate goes.
func TestUndoEndsPods(t *testing.T) {
	j := startJoin(t, testMachine, "")
	j.apply(t)
	e := &engineOfPods{running: []string{"static", "daemon"}}
	j.n.Daemon(podsSocket, e.answer)
	en := j.engine()
	_, err := en.Undo(context.Background(), j.n, "all", nil)
	if err == nil || !strings.Contains(joinBecause(err), "pod default/daemon") || len(e.calls) > 0 {
		t.Fatalf("not refused: %v, %v", err, e.calls)
	}
	stopped := ""
	en.Tell = func(ev converge.Event) {
		if ev.Change != nil && ev.Change.Name == "kubelet.service" && ev.What == converge.Undone {
			stopped = fmt.Sprint(len(e.calls))
		}
	}
	en.Allow = []string{"leave-cluster"}
	if _, err := en.Undo(context.Background(), j.n, "all", nil); err != nil {
		t.Fatal(err, joinBecause(err))
	}
	slices.Sort(e.calls)
	want := []string{"StopContainer daemon", "StopContainer static", "StopPodSandbox daemon", "StopPodSandbox static"}
	if !slices.Equal(e.calls, want) || stopped != "0" {
		t.Errorf("calls %v, of which %q before kubelet had stopped", e.calls, stopped)
	}
}

// TestUndoNamesPods: an undo that cannot end them is turned back, and says which they are and how to end them.
func TestUndoNamesPods(t *testing.T) {
	for _, down := range []bool{false, true} {
		j := startJoin(t, testMachine, "")
		j.apply(t)
		e := &engineOfPods{running: []string{"static"}, stubborn: true, down: down}
		j.n.Daemon(podsSocket, e.answer)
		en := j.engine()
		en.Allow = []string{"leave-cluster"}
		_, err := en.Undo(context.Background(), j.n, "all", nil)
		want := []string{"could not be stopped", "pod default/static still runs", "crictl -r unix://" + podsSocket + " stopp static", "it does not want to"}
		if down {
			want = []string{"cannot stop the pods of this machine: its container engine does not answer", "connection refused", "systemctl status containerd"}
		}
		trouble := (*converge.Trouble)(nil)
		if !errors.As(err, &trouble) {
			t.Fatalf("got %v", err)
		}
		all := err.Error() + strings.Join(trouble.Because, "\n") + strings.Join(trouble.Try, "\n")
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("%q is not said: %s", w, all)
			}
		}
		if _, err := j.n.Stat(currentCertificate); err != nil || !strings.Contains(j.n.Units(), "kubelet.service enabled active") {
			t.Errorf("half undone: %v %s", err, j.n.Units())
		}
	}
}

// TestUndoEndsPodsUnderKubelet: a kubelet that ran before the join, and goes on after it, does not start the pods again meanwhile.
func TestUndoEndsPodsUnderKubelet(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		j := startJoin(t, testMachine, "")
		j.apply(t)
		n := j.n
		running := func() bool { return strings.Contains(n.Units(), "kubelet.service enabled active") }
		e := &engineOfPods{running: []string{"a"}, stubborn: stubborn}
		n.Daemon(podsSocket, e.answer)
		left := false
		err := withoutPods(context.Background(), n, func() error {
			left = true
			if running() {
				t.Error("kubelet runs while the machine leaves")
			}
			return nil
		})
		if (err != nil) != stubborn || left == stubborn || !running() {
			t.Errorf("stubborn %v: %v, left %v, kubelet runs again: %v", stubborn, err, left, running())
		}
	}
}

// hungHost is a machine on which what has to do with one pod does not end by itself, and whose units heed a run that was ended.
type hungHost struct {
	*simhost.Node
	pod string
}

func (h hungHost) DoCall(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	if strings.Contains(string(request), h.pod) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return h.Node.DoCall(ctx, socket, method, request)
}

func (h hungHost) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return h.Node.Call(ctx, socket, method, request)
}

func (h hungHost) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return h.Node.SetUnit(ctx, name, to)
}

// TestHungPod: a pod that cannot be killed, as one whose process waits for a GPU that hangs, keeps none of the others running, and
// is named.
func TestHungPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := simhost.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		e := &engineOfPods{running: []string{"hung", "other"}}
		n.Daemon(podsSocket, e.answer)
		err = endPods(t.Context(), hungHost{n, "hung"}, podsSocket, []sandbox{{"hung", "pod default/hung"}, {"other", "pod default/other"}})
		if !slices.Equal(e.running, []string{"hung"}) {
			t.Errorf("still running: %v", e.running)
		}
		if because := joinBecause(err); !strings.Contains(because, "pod default/hung still runs") || strings.Contains(because, "other") {
			t.Errorf("%v: %s", err, because)
		}
	})
}

// TestUndoEndedKeepsKubelet: a kubelet that undo has stopped for a while runs again, though the run is ended meanwhile.
func TestUndoEndedKeepsKubelet(t *testing.T) {
	j := startJoin(t, testMachine, "")
	j.apply(t)
	e := &engineOfPods{running: []string{"a"}}
	j.n.Daemon(podsSocket, e.answer)
	ctx, end := context.WithCancel(t.Context())
	err := withoutPods(ctx, hungHost{j.n, "none"}, func() error { end(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(j.n.Units(), "kubelet.service enabled active") {
		t.Errorf("%v, %s", err, j.n.Units())
	}
}

// TestUndoOfStoppedEngine: containers outlive an engine that was stopped. Where kubelet has left pods behind, an engine that is
// installed has to say what became of them; where there is none any more, nothing can run.
func TestUndoOfStoppedEngine(t *testing.T) {
	for _, c := range []struct{ pods, engine, leaves bool }{{true, true, false}, {false, true, true}, {true, false, true}} {
		j := startJoin(t, testMachine, "")
		j.apply(t)
		j.n.Daemon(podsSocket, func(string, []byte) ([]byte, error) { return nil, fs.ErrNotExist })
		if c.pods {
			for _, folder := range []string{"/var/lib/kubelet/pods", "/var/lib/kubelet/pods/0a1b"} {
				if err := j.n.Mkdir(folder, host.Attr{Mode: 0o750}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !c.engine {
			for _, name := range []string{"/usr/bin/containerd", "/usr/lib/systemd/system/containerd.service"} {
				if err := j.n.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := false
		err := withoutPods(t.Context(), j.n, func() error { left = true; return nil })
		if left != c.leaves || (err == nil) != c.leaves || err != nil && !strings.Contains(joinBecause(err), "containers outlive") {
			t.Errorf("%+v: left %v, %v %s", c, left, err, joinBecause(err))
		}
	}
}
