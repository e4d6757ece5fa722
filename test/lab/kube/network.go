// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// network is a network namespace, which lives as long as this process has it open or something runs
// in it. Nothing of it is seen outside.
type network struct {
	file      *os.File
	mutex     sync.Mutex
	listeners []net.Listener
}

// newNetwork makes one with the bridge that hosts are attached to, and the API server's two
// addresses.
func newNetwork() (*network, error) {
	n := &network{}
	if err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot make a network namespace: %w", err)
		}
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return fmt.Errorf("cannot open a network namespace: %w", err)
		}
		return nil
	}); err != nil {
		return nil, err
	}

	err := n.do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		// A bridge without an address of its own takes the lowest of its ports': when a host goes,
		// the others would send into the void for half a minute, until they ask again who has the
		// API server's.
		cmd.Stdin = strings.NewReader("link set lo up\naddress add " + service + "/32 dev lo\nlink add " + bridge + " address 02:00:0a:c8:00:01 type bridge\n" +
			"address add " + address + "/24 dev " + bridge + "\nlink set " + bridge + " up\n" +
			"route add unreachable default\n") // what is elsewhere is known at once to be out of reach
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot set up the cluster's network: %w: %s", err, output)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil { // of this thread's network
			return fmt.Errorf("cannot set up the cluster's network: %w", err)
		}
		return nil
	})
	if err == nil {
		// Pods reach the API server by its service's address, which kube-proxy would lead there.
		// Here it is the API server's own.
		err = n.pass(func() (net.Listener, error) {
			return n.listen(service + ":443")
		}, address+":"+port)
	}

	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// onThread runs do on a thread of its own, which ends with it: whatever namespace it then is in.
func onThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- do()
	}()
	return <-done
}

// enter moves the calling thread into the network. The thread must be locked, for good.
func (n *network) enter() error {
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the cluster's network: %w", err)
	}
	return nil
}

func (n *network) do(what func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return what()
	})
}

// path is the namespace's file, as other processes see it too.
func (n *network) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// dial connects to an address of the network.
func (n *network) dial(ctx context.Context, kind, to string) (conn net.Conn, err error) {
	err = n.do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, kind, to)
		return err
	})
	return conn, err
}

func (n *network) listen(at string) (listener net.Listener, err error) {
	err = n.do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	})
	return listener, err
}

// forward makes an address of the network reachable from this machine, and says by which.
func (n *network) forward(to string) (at string, err error) {
	err = n.pass(func() (net.Listener, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			at = "https://" + listener.Addr().String()
		}
		return listener, err
	}, to)
	return at, err
}

// pass passes connections on.
func (n *network) pass(listen func() (net.Listener, error), to string) error {
	listener, err := listen()
	if err != nil {
		return fmt.Errorf("cannot listen for %s: %w", to, err)
	}
	n.mutex.Lock()
	n.listeners = append(n.listeners, listener)
	n.mutex.Unlock()
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go n.join(from, to)
		}
	}()
	return nil
}

func (n *network) join(from net.Conn, to string) {
	defer from.Close()
	there, err := n.dial(context.Background(), "tcp", to)
	if err != nil {
		return // and the caller sees its connection closed
	}
	defer there.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, there}, {there, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // one end's error is the other's end
			if half, ok := way[0].(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
			done <- struct{}{}
		}()
	}

	<-done
	<-done
}

func (n *network) close() error {
	for _, listener := range n.listeners {
		_ = listener.Close()
	}
	return n.file.Close()
}
