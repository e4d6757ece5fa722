// SPDX-License-Identifier: Apache-2.0

// Package kube runs a real Kubernetes control plane for tests, in a network of its own, and
// attaches the lab's hosts to it: etcd, the API server with the node authorizer, the controllers
// that sign certificates and bootstrap tokens, and the scheduler. It is there in a few seconds and
// goes with the process that started it.
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
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
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

// patience is how long anything of the cluster may take on a machine with much else to do: as in
// test/lab, only what hangs takes so long.
const patience = 15 * time.Minute

// Cluster is a running control plane.
type Cluster struct {
	// Admin may do anything.
	Admin *Client
	// Local is the API server's address for programs of this machine, outside the cluster's
	// network.
	Local string

	flags     []string // of the API server, beside those that each has
	release   string   // of the API server, "" for that of the others
	signed    time.Duration
	version   string // of Kubernetes
	dir       string // of the cache, removed at the end
	lock      *os.File
	network   *network
	keys      *keys
	processes []*process
	reviews   reviews
	clouds    server
	mutex     sync.Mutex
	hosts     int // that were attached
}

// Start starts a control plane, its API server with more flags, and waits until it serves: some ten
// seconds.
func Start(ctx context.Context, flags ...string) (*Cluster, error) {
	return (&Shared{Flags: flags}).start(ctx)
}

// start starts the control plane that a Shared describes.
func (s *Shared) start(ctx context.Context) (c *Cluster, err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("cannot start a control plane: it needs root")
	}
	parts, err := Find()
	if err != nil {
		return nil, err
	}
	c = &Cluster{
		flags:   s.Flags,
		release: s.Release,
		signed:  s.Signed,
		version: parts.Version,
	}
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

// Shared is a control plane for all tests of a package: the first that asks starts it.
type Shared struct {
	// Flags are more flags of the API server.
	Flags []string
	// Release is the API server's, such as "v1.30.14"; "" for that of the other programs.
	Release string
	// Signed is how long certificates are good that nodes ask for; 0 for a year.
	Signed time.Duration

	once    sync.Once
	cluster *Cluster
	err     error
}

// T is a control plane in a test: whatever goes wrong with it ends the test.
type T struct {
	*Cluster
	testing.TB
}

// Run gives a test the control plane. It skips the test where the machine lacks what that needs,
// and fails it there if CI=true.
func (s *Shared) Run(t testing.TB) *T {
	t.Helper()
	lab.Asked(t)
	s.once.Do(func() {
		began := time.Now()
		s.cluster, s.err = s.start(context.Background())
		if s.err == nil {
			t.Logf("a control plane was there after %s", time.Since(began).Round(100*time.Millisecond))
		}
	})
	if missing := (errMissing{}); errors.As(s.err, &missing) && os.Getenv("CI") != "true" {
		t.Skip(s.err)
	}
	must.OK(t, s.err)
	return &T{s.cluster, t}
}

// Close ends the control plane, if a test has started it.
func (s *Shared) Close() error {
	if s.cluster == nil || s.err != nil {
		return nil
	}
	return s.cluster.Close()
}

// Mute has the API server take connections and never answer, until the returned function is called
// or the test ends.
func (t *T) Mute() (speaks func()) {
	t.Helper()
	server := t.processes[1].cmd.Process
	must.OK(t, server.Signal(syscall.SIGSTOP))
	speaks = func() { _ = server.Signal(syscall.SIGCONT) }
	t.Cleanup(speaks)
	return speaks
}

// Apply makes objects be there as stated.
func (t *T) Apply(objects ...Object) {
	t.Helper()
	must.OK(t, t.Admin.Apply(t.Context(), objects...))
}

// Get gets the object at a path, which has to be there.
func (t *T) Get(path string) Object {
	t.Helper()
	o := must.Get(t.Admin.Get(t.Context(), path))(t)
	return o
}

// Look gets the object at a path; nil if it is not there.
func (t *T) Look(path string) Object {
	t.Helper()
	o, err := t.Admin.Get(t.Context(), path)
	if err != nil && StatusOf(err) != http.StatusNotFound {
		t.Fatal(err)
	}
	return o
}

// Merge changes the object at a path.
func (t *T) Merge(path string, change Object) {
	t.Helper()
	must.Get(t.Admin.Merge(t.Context(), path, change))(t)
}

// Delete deletes the object at a path, if it is there. It may also be called when the test ends.
func (t *T) Delete(path string) {
	t.Helper()
	if err := t.Admin.Delete(context.WithoutCancel(t.Context()), path); err != nil {
		t.Error(err)
	}
}

// Until waits until what is asked for is so: ask returns "" or what is wrong yet.
func (t *T) Until(what string, ask func() (wrong string)) {
	t.Helper()
	wrong := ""
	if !lab.Until(patience, func() bool { wrong = ask(); return wrong == "" }) {
		t.Fatalf("cannot see that %s: %s", what, wrong)
	}
}

// Token makes a bootstrap token that is good for an hour.
func (t *T) Token() string {
	t.Helper()
	token := must.Get(t.BootstrapToken(t.Context(), time.Hour))(t)
	return token
}

// Account makes a token of a ServiceAccount, bound to a pod that is on a node, whatever taints that
// has, as images/daemonset's is; "" binds it to none. The test does not wait for the pod, which is
// deleted when the test ends.
func (t *T) Account(namespace, account, node string) string {
	t.Helper()
	pod := Pod{}
	if node != "" {
		made, err := t.Admin.Create(t.Context(), "/api/v1/namespaces/"+namespace+"/pods", Object{
			"apiVersion": "v1", "kind": "Pod", "metadata": Object{
				"generateName": "bound-", "namespace": namespace, "labels": Object{"pod-template-generation": "1"}, // as DaemonSets make theirs
			},
			"spec": Object{
				"serviceAccountName": account, "nodeName": node, "tolerations": []Object{{"operator": "Exists"}},
				"containers": []Object{{"name": "main", "image": lab.PauseImage, "imagePullPolicy": "Never"}},
			},
		})
		must.OK(t, err)
		pod = Pod{Text(made, "metadata", "name"), Text(made, "metadata", "uid")}
		t.Cleanup(func() {
			t.Delete("/api/v1/namespaces/" + namespace + "/pods/" + pod.Name + "?gracePeriodSeconds=0")
		})
	}

	token := must.Get(t.AccountToken(t.Context(), namespace, account, pod))(t)
	return token
}
