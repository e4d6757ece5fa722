// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/converge"
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
