// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabImage: the machine's containerd takes the image, and as the DaemonSet runs it the program in it converges the machine: with a root
// folder that cannot be written, without capabilities, while containerd restarts under it.
func TestLabImage(t *testing.T) {
	t.Parallel()
	archive := lab.AgentArchive(t)
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		if r := n.ExecInput(bytes.NewReader(archive), "ctr", "-n", "lab", "images", "import", "--base-name", "lab.invalid/gpuadm", "-"); r.Exit != 0 {
			t.Fatal(r)
		}
		const name = "lab.invalid/gpuadm:devel"
		var bill struct{ Components []struct{ Name string } }
		n.Must("sh", "-ec", "mkdir /tmp/image; ctr -n lab images mount "+name+" /tmp/image")
		if err := json.Unmarshal([]byte(n.Get("/tmp/image/usr/share/doc/gpuadm/gpuadm.cdx.json")), &bill); err != nil || len(bill.Components) < 10 {
			t.Errorf("the bill of materials has %d components: %v", len(bill.Components), err)
		}
		if out := n.Must("sh", "-c", "cd /tmp/image && find . -type f | wc -l"); strings.TrimSpace(out) != "8" {
			t.Errorf("the image has %s files", out)
		}
		n.Must("ctr", "-n", "lab", "images", "unmount", "/tmp/image")
		n.Must("ctr", "-n", "lab", "run", "--rm", name, "version", "/usr/bin/gpuadm", "version")

		n.Must("ctr", "-n", "lab", "run", "--detach", "--null-io", "--read-only", "--seccomp",
			"--mount", "type=bind,src=/,dst=/host,options=rbind:rslave", "--mount", "type=bind,src=/run/systemd,dst=/run/systemd,options=rbind",
			name, "agent", "/usr/bin/gpuadm", "daemonset", "--every", "1s")
		if !eventually(func() bool { return n.Exec("gpuadm", "status").Exit == 0 }) {
			t.Errorf("not converged: %s%s", n.Exec("gpuadm", "status"), n.Exec("cat", "/run/gpuadm/daemonset.log"))
		}
		n.configured()
		// containerd may not have its socket yet: it has just been restarted.
		if task := func() string { return n.Exec("ctr", "-n", "lab", "tasks", "list").Stdout }; !eventually(func() bool { return strings.Contains(task(), "RUNNING") }) {
			t.Errorf("the container did not survive: %s", task())
		}
		n.Must("ctr", "-n", "lab", "tasks", "kill", "--signal", "KILL", "agent")
	})
}
