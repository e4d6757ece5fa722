// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	accountFile = "/etc/gpuadm/account"
	accountUser = "system:serviceaccount:gpuadm:gpuadm"
)

// labKeys are what the tests' node.toml name beside the policy's own list.
const labKeys = `"example.com/*", "lab.kubernetes.io/gpu",`

var allowed sync.Once

// allow makes gpuadm's ServiceAccount with what it may do.
func allow(c *kube.T) {
	c.Helper()
	allowed.Do(func() { c.Apply(policyObjects(c, labKeys)...) })
}

// account puts a kubeconfig of gpuadm's ServiceAccount on the host, as one that is bound to a pod there has it.
func (n gpuHost) account() {
	n.t.Helper()
	allow(n.c)
	text := must.Get(n.c.BearerConfig(kube.Server, n.c.Account("gpuadm", "gpuadm", n.Name)))(n.t)
	n.Put(accountFile, text, 0o600)
}

// transition is when a condition became what it is.
func transition(condition kube.Object) time.Time {
	at, _ := time.Parse(time.RFC3339, kube.Text(condition, "lastTransitionTime"))
	return at
}
