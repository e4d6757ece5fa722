// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
)

// ansibleHosts: n1 downloads a deb, n2 gets a program from the operator's machine.
const ansibleHosts = `all:
  vars: {gpuadm_spec: "{{ lookup('file', '/root/node.toml') }}", gpuadm_pause: 1}
  hosts:
    n1: {gpuadm_source: "http://127.0.0.1:8080/gpuadm.deb", gpuadm_sha256: "%x"}
    n2: {gpuadm_source: /root/gpuadm-lab, gpuadm_sha256: "%x"}
`

// playLine runs the role on the hosts of /root/hosts.yaml.
func playLine() []string {
	return []string{
		"env", "HOME=/root", "ANSIBLE_PIPELINING=1", "ansible-playbook", "-i", "/root/hosts.yaml", "/root/play.yaml",
	}
}

// installRole installs the role on the operator's machine as ansible-galaxy does, and writes the play.
func (o *office) installRole() {
	o.t.Helper()
	role := os.DirFS("../../images/ansible")
	must.OK(o.t, fs.WalkDir(role, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			o.Put("/root/ansible/"+name, string(must.Get(fs.ReadFile(role, name))(o.t)), 0o644)
		}
		return err
	}))
	o.Must("ansible-galaxy", "collection", "build", "/root/ansible", "--output-path", "/root")
	o.Must("sh", "-c", "ansible-galaxy collection install --offline /root/gpuadm-node-*.tar.gz")
	o.Put("/root/play.yaml", "- hosts: all\n  become: true\n  gather_facts: false\n  roles: [gpuadm.node.gpuadm]\n", 0o644)
}

// TestLabAnsible: the role, as ansible-galaxy installs it, takes two hosts through check mode, an
// apply that reboots one of them, the same again; if the whole lab runs also a lock that another
// gpuadm holds, mistakes, and an undo.
func TestLabAnsible(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 2)
	n1, n2 := o.nodes[0], o.nodes[1]
	deb := must.Get(os.ReadFile("../../bin/packages/gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb"))(t)
	program := withLabStage(t)
	o.installRole()
	o.Put("/root/gpuadm-lab", program, 0o755)
	o.Put("/root/hosts.yaml", fmt.Sprintf(ansibleHosts, sha256.Sum256(deb), sha256.Sum256([]byte(program))), 0o644)
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(deb)
	})
	go func() { _ = http.Serve(n1.Listen("127.0.0.1:8080"), serve) }() //nolint:gosec // it ends with the test
	n2.Put(labstage.Setting, "", 0o644)

	line := playLine()
	recap := regexp.MustCompile(`(?m)^(n\d) +: .* changed=(\d+) .*unreachable=0 +failed=(\d+)`)
	ended := func(r lab.Result) string { // "n1 CHANGED FAILED, n2 …", without the numbers
		t.Helper()
		t.Log(r)
		said := ""
		for _, m := range recap.FindAllStringSubmatch(r.Stdout, -1) {
			said += m[1] + map[bool]string{
				true:  " same",
				false: " changed",
			}[m[2] == "0"] + map[bool]string{true: " ", false: " failed "}[m[3] == "0"]
		}

		return said
	}

	play := func(want string, args ...string) lab.Result {
		t.Helper()
		r := o.Exec(append(line, args...)...)
		check.Equal(t, ended(r), want, "ansible-playbook %v:", args)
		return r
	}

	etc := func(n node) lab.Tree { return n.Tree([]string{"/etc", "/usr"}) }
	first := []lab.Tree{etc(n1), etc(n2)}
	r := play("n1 changed n2 changed ", "--check")
	wants(t, r, "No plan: gpuadm is not installed", "/etc/containerd/config.toml")
	check.None(t, first[0].Diff(etc(n1))+first[1].Diff(etc(n2)), "check mode has touched:")

	id, task := n2.BootID(), o.Go(line...)
	defer func() { task.Wait() }()
	n2.WaitFor(labstage.Made)
	n2.Rebooted()
	check.Equal(t, ended(task.Wait()), "n1 changed n2 changed ", "the first apply:")
	check.That(t, n2.BootID() != id, "it has not rebooted")
	for _, n := range o.nodes {
		n.gpuadm(0, "status")
		n.configured()
		check.Equal(t, n.Property(bootUnit, "UnitFileState"), "enabled", "%s is", bootUnit)
	}

	play("n1 same n2 same ")
	if !check.All() {
		return
	}
	play("n1 same n2 same ", "--check")

	// Another gpuadm has the lock, until an apply has come for it and ended.
	const apply = "pgrep -f 'apply [-]-unattended'; do sleep 0.1; done; "
	holder := n1.Go("flock", "/run/gpuadm.lock", "sh", "-c", "until "+apply+"while "+apply)
	wants(t, play("n1 same ", "--limit", "n1"), "FAILED - RETRYING")
	holder.Wait()
	wants(t, play("n2 same failed ", "--limit", "n2", "-e", `{"gpuadm_spec": "format = 2\n"}`), "format")
	wants(t, play("n2 same failed ", "--limit", "n2", "-e", "gpuadm_sha256="+fmt.Sprintf("%064d", 0)), "has the SHA-256")
	n1.gpuadm(0, "undo", "--to", "all")
	wants(t, play("n1 same failed ", "--limit", "n1"), "holds unattended applies")
}
