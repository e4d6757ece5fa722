// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabCrashAnsible: the role has a node download the program, writes the spec and applies it. The
// operator's ansible-playbook is killed when it talks to the node, and the node's power is cut then.
// The same play makes the node, or undo leads back.
func TestLabCrashAnsible(t *testing.T) {
	t.Parallel()
	o := officeOf(t, 1, lab.Options{Disk: true})
	program := must.Get(os.ReadFile("../../bin/gpuadm"))(t)
	o.installRole()
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(program)
	})
	go func() { _ = http.Serve(o.Listen("10.201.0.10:8080"), serve) }() //nolint:gosec // it ends with the test
	o.Put("/root/hosts.yaml", fmt.Sprintf(ansibleHost, sha256.Sum256(program)), 0o644)

	c := remoteCutting(o, o.nodes[0])
	// Ansible's own: undo leaves the spec and the file that the role has brought.
	c.without = []string{"/etc/gpuadm", "/var/cache/gpuadm"}
	c.prepare = func(n node) { n.Must("rm", "-rf", "/etc/gpuadm", "/var/cache/gpuadm") }
	// Without a shared connection, which a killed ansible-playbook leaves for a minute.
	c.command = append([]string{"env", "ANSIBLE_SSH_ARGS=-o ControlMaster=no", "PYTHONDONTWRITEBYTECODE=1"}, playLine()...)
	c.talks = true
	c.ready()
	c.killed(c.sample(2))
	c.powerless(lab.Synced, c.sample(2))
	c.powerless(lab.Named, c.sample(2))
	c.count()
}

// ansibleHost downloads the program from the operator's machine.
const ansibleHost = `all:
  vars: {gpuadm_spec: "{{ lookup('file', '/root/node.toml') }}", gpuadm_pause: 1}
  hosts:
    n1: {gpuadm_source: "http://10.201.0.10:8080/gpuadm", gpuadm_sha256: "%x"}
`
