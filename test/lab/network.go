// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/must"
)

// Wire attaches a host to a network, which else has a loopback interface alone.
type Wire struct {
	Namespace string // the file of the network namespace with the bridge
	Bridge    string
	Address   string // the host's, with the length of the prefix: "10.200.0.11/24"
	Gateway   string
	Pods      string // the addresses of the host's pods: "10.244.11.0/24"
}

// enterWire moves the calling thread into the network that the host is to be attached to. The
// thread must be locked, for good.
func (m *Machine) enterWire() error {
	if m.Options.Wire == nil {
		return nil
	}
	file, err := os.Open(m.Options.Wire.Namespace)
	if err != nil {
		return fmt.Errorf("cannot open the host's network: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the host's network: %w", err)
	}
	// After a power loss the kernel takes the old boot's network apart in its own time, and its
	// interface is in the way. That there is none is as well.
	_ = exec.Command("ip", "link", "delete", "vb-"+m.nspawnName()).Run()
	return nil
}

// nspawnName is what systemd-nspawn knows the host by. It calls the interface on the bridge
// vb-NAME, of which no more than 15 characters would be left: IFNAMSIZ in linux/if.h.
func (m *Machine) nspawnName() string {
	if m.Options.Wire == nil {
		return m.Name
	}
	return "lab-" + m.Name[strings.LastIndex(m.Name, "-")+1:]
}

// hostname is what the host calls itself.
func (m *Machine) hostname() string {
	if m.Options.Name != "" {
		return m.Options.Name
	}
	return "node"
}

// spawnArgs are systemd-nspawn's arguments for what Options say of the network and of files of this
// machine.
func (m *Machine) spawnArgs() []string {
	args := []string{"--private-network"}
	if m.Options.Wire != nil {
		args = []string{"--network-bridge=" + m.Options.Wire.Bridge}
	}
	for inside, file := range m.Options.Files {
		args = append(args, "--bind-ro="+file+":"+inside)
	}
	return args
}

// furnishWire gives the host its address, by systemd-networkd.
func (m *Machine) furnishWire(put putFunc) error {
	if m.Options.Wire == nil {
		return nil
	}

	address := m.Options.Wire.Address
	network := "[Match]\nName=host0\n[Network]\nAddress=" + address + "\nGateway=" + m.Options.Wire.Gateway +
		"\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
	// Kubelet asks for its own name's address at each of its reports, and a name server that does
	// not answer costs it 10 s.
	own, _, _ := strings.Cut(address, "/")
	hosts := "127.0.0.1 localhost\n" + own + " " + m.hostname() + "\n"
	for name, text := range map[string]string{
		"/etc/systemd/network/10-host0.network": network,
		"/etc/hosts":                            hosts,
		"/etc/resolv.conf":                      "# no name server\n",
	} {
		if err := put(name, text, 0o644); err != nil {
			return err
		}
	}

	for unit, target := range map[string]string{
		"systemd-networkd.service":             "multi-user.target",
		"systemd-networkd.socket":              "sockets.target",
		"systemd-networkd-wait-online.service": "network-online.target",
	} {
		if err := m.enable(unit, target); err != nil {
			return err
		}
	}

	return nil
}

// enable has a target of the host want a unit.
func (m *Machine) enable(unit, target string) error {
	link := m.path("upper") + "/etc/systemd/system/" + target + ".wants/" + unit
	err := os.MkdirAll(filepath.Dir(link), 0o755)
	if err == nil {
		err = os.Symlink("/usr/lib/systemd/system/"+unit, link)
	}
	if err != nil {
		return fmt.Errorf("cannot furnish the host's network: %w", err)
	}
	return nil
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
		// Never unlocked: the thread, which is in the new network, ends with this goroutine.
		runtime.LockOSThread()
		done <- s.make()
	}()
	err := <-done
	must.That(t, err == nil, "cannot make a network for hosts: %v", err)
	t.Cleanup(func() { _ = s.namespace.Close() })
	return s
}

// make makes the network, and moves the calling thread into it.
func (s *Switch) make() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	s.namespace = namespace

	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(`link add lab0 address 02:00:0a:c9:00:01 type bridge
address add 10.201.0.1/24 dev lab0
link set lab0 up
`)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// Wire attaches a host, as 10.201.0.N.
func (s *Switch) Wire(n int) *Wire {
	return &Wire{
		Namespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.namespace.Fd()),
		Bridge:    "lab0",
		Address:   fmt.Sprintf("10.201.0.%d/24", n),
		Gateway:   "10.201.0.1",
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
		// Never unlocked: the thread, which is in the host's network now, ends with this goroutine.
		runtime.LockOSThread()
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
