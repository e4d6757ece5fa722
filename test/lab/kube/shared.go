// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// Shared is a control plane for all tests of a package: the first that asks starts it.
type Shared struct {
	// Flags are more flags of the API server.
	Flags []string

	once    sync.Once
	cluster *Cluster
	err     error
}

// T is a control plane in a test: whatever goes wrong with it ends the test.
type T struct {
	*Cluster
	testing.TB
}

// Run gives a test the control plane. It skips the test where the machine lacks what that needs, and fails it there if CI=true.
func (s *Shared) Run(t testing.TB) *T {
	t.Helper()
	lab.Asked(t)
	s.once.Do(func() {
		began := time.Now()
		s.cluster, s.err = Start(context.Background(), s.Flags...)
		if s.err == nil {
			t.Logf("a control plane was there after %s", time.Since(began).Round(100*time.Millisecond))
		}
	})
	if missing := (errMissing{}); errors.As(s.err, &missing) && os.Getenv("CI") != "true" {
		t.Skip(s.err)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return &T{s.cluster, t}
}

// Close ends the control plane, if a test has started it.
func (s *Shared) Close() error {
	if s.cluster == nil || s.err != nil {
		return nil
	}
	return s.cluster.Close()
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

// Account makes a token of a ServiceAccount, bound to a pod that is on a node, whatever taints that has, as images/daemonset's is; ""
// binds it to none. The test does not wait for the pod, which is deleted when the test ends.
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
		t.Cleanup(func() { t.Delete("/api/v1/namespaces/" + namespace + "/pods/" + pod.Name + "?gracePeriodSeconds=0") })
	}
	token := must.Get(t.AccountToken(t.Context(), namespace, account, pod))(t)
	return token
}
