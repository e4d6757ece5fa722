// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabCrashSSH: gpuadm ssh copies the program to a node and applies there. The operator's command
// is killed at its touches, and those of its ssh; the node's power is cut then. Nothing of the copy
// stays, and the same command makes the node, or undo leads back.
func TestLabCrashSSH(t *testing.T) {
	t.Parallel()
	o := officeOf(t, 1, lab.Options{Disk: true})
	n := o.nodes[0]
	n.Put(specFile, specText, 0o644)
	c := remoteCutting(o, n)
	c.command = []string{"gpuadm", "ssh", "n1", "--", "apply"}
	c.ready()
	c.killed(c.sample(1))
	c.powerless(lab.Synced, c.sample(1))
	c.powerless(lab.Named, c.sample(2))
	c.count()
}

// remoteCutting is a node that a command on the operator's machine changes.
func remoteCutting(o *office, n node) *cutting {
	const copies = "find / /run /tmp -xdev ( -path /proc -o -path /sys ) -prune -o -name .gpuadm-ssh.* -print"
	return &cutting{
		node:    n,
		from:    o.node,
		over:    "n1",
		folders: []string{"/etc", "/usr", "/var/lib"},
		ask: func(n node) map[string]string {
			return map[string]string{
				"copies":     n.Exec(strings.Fields(copies)...).Stdout,
				"containerd": n.Property(daemon, "ActiveState"),
			}
		},
	}
}
