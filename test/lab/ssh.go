// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/must"
)

// sshDist is the distribution of hosts with Options.SSH.
const sshDist = "bookworm"

// sshLayer has an SSH server and client, sudo, and Ansible, with what its module for packages needs
// on the hosts.
func sshLayer() layer {
	return layer{"ssh", "1", []string{"openssh-server", "openssh-client", "sudo", "ansible-core", "python3-apt"}, nil}
}

// furnishSSH keeps the manager of a user who has logged out: in cgroups of the first version a
// systemd that is itself in a container is not told that the manager's have emptied, and waits for
// them for minutes, as the user's next login does. See furnishKubelet.
func (m *Machine) furnishSSH(put func(name, text string, mode os.FileMode) error) error {
	if !m.Options.SSH {
		return nil
	}
	return put("/etc/systemd/logind.conf.d/10-lab.conf", "[Login]\nUserStopDelaySec=infinity\n", 0o644)
}

// Switch is a network for some hosts of a test: a bridge in a network namespace of its own.
type Switch struct{ namespace *os.File }

// NewSwitch makes one, which ends with the test.
func NewSwitch(t testing.TB) *Switch {
	t.Helper()
	Asked(t)
	s := &Switch{}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in the new network, ends with this goroutine
		done <- s.make()
	}()
	err := <-done
	must.That(t, err == nil, "cannot make a network for hosts: %v", err)
	t.Cleanup(func() { _ = s.namespace.Close() })
	return s
}

func (s *Switch) make() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if s.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader("link add lab0 address 02:00:0a:c9:00:01 type bridge\naddress add 10.201.0.1/24 dev lab0\nlink set lab0 up\n")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// Wire attaches a host, as 10.201.0.N.
func (s *Switch) Wire(n int) *Wire {
	return &Wire{
		Namespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.namespace.Fd()), Bridge: "lab0",
		Address: fmt.Sprintf("10.201.0.%d/24", n), Gateway: "10.201.0.1",
	}
}

// Listen listens in the host's own network, which has a loopback interface alone: a server of the
// test's process there answers programs of the host. A reboot ends it, since the host then has
// another network.
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
	must.That(h.t, a.err == nil, "cannot listen on %s in the host: %v", address, a.err)
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
