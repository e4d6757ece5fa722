// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package kube runs a real Kubernetes control plane for tests, in a network of its own, and attaches the lab's hosts to
// it: etcd, the API server with the node authorizer, the controllers that sign certificates and bootstrap tokens, and the
// scheduler. It is there in a few seconds and goes with the process that started it.
//
//	var cluster kube.Shared // by all tests of the package; its TestMain calls Close
//
//	func TestLabKubeSomething(t *testing.T) {
//		c := cluster.Run(t)
//		n := c.Boot("gpu-1", lab.Options{Dist: "trixie"})
//		n.Packages()
//		…
//		n.Must("gpuadm", "apply", "--install")
//		n.Join()
//		n.Ready()
//	}
//
// The programs are built once, from the module test/kube, into a cache folder:
//
//	go run ./test/lab/kube/cmd/kube build
package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

// Where things are in the control plane's network. Hosts get the addresses after the first.
const (
	address  = "10.200.0.1"
	service  = "10.96.0.1" // of the API server, first of the services' addresses
	services = "10.96.0.0/16"
	dns      = "10.96.0.10" // nothing answers there
	bridge   = "kube0"
	port     = "6443"
)

// Server is the API server's address, for hosts and pods.
const Server = "https://" + address + ":" + port

// patience is how long anything of the cluster may take on a machine with much else to do.
const patience = 3 * time.Minute

// Cluster is a running control plane.
type Cluster struct {
	// Admin may do anything.
	Admin *Client
	// Local is the API server's address for programs of this machine, outside the cluster's network.
	Local string

	flags     []string // of the API server, beside those that each has
	version   string   // of Kubernetes
	dir       string   // of the cache, removed at the end
	lock      *os.File
	network   *network
	keys      *keys
	processes []*process
	reviews   reviews
	clouds    server
	mutex     sync.Mutex
	hosts     int // that were attached
}

// Start starts a control plane, its API server with more flags, and waits until it serves: some ten seconds.
func Start(ctx context.Context, flags ...string) (c *Cluster, err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("cannot start a control plane: it needs root")
	}
	parts, err := Find()
	if err != nil {
		return nil, err
	}
	c = &Cluster{flags: flags, version: parts.Version}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot start a control plane: %w", err), c.Close())
		}
	}()
	if err := c.folder(); err != nil {
		return c, err
	}
	if c.network, err = newNetwork(); err != nil {
		return c, err
	}
	if c.keys, err = newKeys(c.dir); err != nil {
		return c, err
	}
	admin, err := c.keys.certify("admin", "system:masters")
	if err != nil {
		return c, err
	}
	c.Admin = c.client(&admin, "")
	if err := c.run(ctx, parts); err != nil {
		return c, err
	}
	if c.Local, err = c.network.forward(address + ":" + port); err != nil {
		return c, err
	}
	return c, c.prepare(ctx)
}

// Close ends the control plane and drops all it wrote.
func (c *Cluster) Close() error {
	var failed []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		failed = append(failed, c.processes[i].stop())
	}
	if c.network != nil {
		failed = append(failed, c.network.close())
	}
	if c.dir != "" {
		failed = append(failed, os.RemoveAll(c.dir))
	}
	if c.lock != nil {
		failed = append(failed, c.lock.Close(), os.Remove(c.lock.Name()))
	}
	return errors.Join(failed...)
}

// folder makes the cluster's folder, and removes those that killed processes left.
func (c *Cluster) folder() error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	runs := filepath.Join(cache, "running")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return fmt.Errorf("cannot make the clusters' folder: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(runs, "*.lock"))
	if err != nil {
		return fmt.Errorf("cannot list clusters: %w", err)
	}
	for _, name := range left {
		if file, err := lab.Lock(name, syscall.LOCK_NB); err == nil { // no process uses it
			_ = os.RemoveAll(name[:len(name)-len(".lock")])
			_ = os.Remove(name)
			_ = file.Close()
		}
	}
	dir := filepath.Join(runs, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()))
	if c.lock, err = lab.Lock(dir+".lock", syscall.LOCK_NB); err != nil {
		return fmt.Errorf("cannot lock the cluster's folder: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the cluster's folder: %w", err)
	}
	c.dir = dir
	return nil
}

// Dir is the cluster's folder: its certificates, and what its programs said, in files named *.log.
func (c *Cluster) Dir() string { return c.dir }

// Enter is the command line prefix that runs a program of this machine in the cluster's network.
func (c *Cluster) Enter() string { return "nsenter --net=" + c.network.path() }
