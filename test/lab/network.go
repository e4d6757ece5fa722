// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen listens in the host's own network, which has a loopback interface alone: a server of the test's process there
// answers programs of the host. A reboot ends it, since the host then has another network.
func (h *Host) Listen(address string) net.Listener {
	h.t.Helper()
	type answer struct {
		net.Listener
		err error
	}
	done := make(chan answer)
	leader := h.leader
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in the host's network now, ends with this goroutine
		listener, err := listenIn(fmt.Sprintf("/proc/%d/ns/net", leader), address)
		done <- answer{listener, err}
	}()
	a := <-done
	if a.err != nil {
		h.t.Fatalf("cannot listen on %s in the host: %v", address, a.err)
	}
	h.t.Cleanup(func() { _ = a.Close() })
	return a.Listener
}

func listenIn(namespace, address string) (net.Listener, error) {
	network, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = network.Close() }()
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("cannot enter its network: %w", err)
	}
	return new(net.ListenConfig).Listen(context.Background(), "tcp", address)
}
