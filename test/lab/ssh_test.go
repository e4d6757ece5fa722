// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// The tests of this file run one after another: each has three to five hosts.

// office is an operator's machine and nodes that it reaches by ssh as n1, n2, …: real sshd, a login
// with sudo, no gpuadm.
type office struct {
	node  // the operator's
	nodes []node
	first []lab.Tree
}

const (
	hold     = "/etc/lab-hold" // while it is there, containerd does not start
	spec     = "/root/node.toml"
	planted  = "planted-5f1e"
	specMore = "# " + planted + "\n"
)

func newOffice(t *testing.T, count int) *office {
	t.Helper()
	return officeOf(t, count, lab.Options{})
}

// officeOf has nodes with these options, too.
func officeOf(t *testing.T, count int, nodes lab.Options) *office {
	t.Helper()
	wires := lab.NewSwitch(t)
	host := func(o lab.Options, name string, n int) node {
		o.Dist, o.GPUs, o.SSH = "bookworm", 8, true
		o.Name, o.Wire = name, wires.Wire(n)
		return node{lab.Boot(t, o), t}
	}

	o := &office{node: host(lab.Options{}, "laptop", 10)}
	o.Must("sh", "-ec", "mkdir -p -m 700 /root/.ssh; for key in .ssh/id_ed25519 other; do ssh-keygen -q -t ed25519 -N '' -f /root/$key; done")
	o.Put(spec, specText+specMore, 0o600)
	key := o.Get("/root/.ssh/id_ed25519.pub")
	config := &strings.Builder{}
	for i := range count {
		n := host(nodes, fmt.Sprintf("node%d", i+1), 11+i)
		n.Must("sh", "-ec", `rm /usr/local/sbin/gpuadm
for user in op; do useradd --create-home --shell /bin/bash $user; mkdir -m 700 /home/$user/.ssh; done
mkdir -p -m 700 /root/.ssh
echo "op ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/op
for home in /root /home/op; do echo '`+strings.TrimSpace(key)+`' >$home/.ssh/authorized_keys; chown -R --reference=$home $home/.ssh; done
mkdir -p /etc/systemd/system/containerd.service.d /etc/systemd/system/user@.service.d /etc/gpuadm
# In a container systemd may not see that a user's manager has ended; a reboot then waits out its limit of 120 s: systemd/systemd issue 16694.
printf '[Service]\nTimeoutStopSec=3s\n' >/etc/systemd/system/user@.service.d/lab.conf
printf '[Service]\nTimeoutStartSec=infinity\nExecStartPre=/bin/sh -c "while [ -e `+hold+` ]; do sleep 0.1; done"\n' >/etc/systemd/system/containerd.service.d/hold.conf
systemctl daemon-reload`)
		n.answers()
		fmt.Fprintf(config, "Host n%d r%[1]d\n  HostName 10.201.0.%d\n", i+1, 11+i)
		o.Must("sh", "-c", fmt.Sprintf("ssh-keyscan 10.201.0.%d >>/root/.ssh/known_hosts", 11+i))
		o.nodes = append(o.nodes, n)
	}

	config.WriteString("Host r*\n  User root\nHost down\n  HostName 10.201.0.99\nHost hang\n  HostName 127.0.0.1\n  Port 2222\n" +
		"Host wrong\n  HostName 10.201.0.11\n  UserKnownHostsFile /root/.ssh/wrong\nHost *\n  User op\n  StrictHostKeyChecking yes\n")
	o.Put("/root/.ssh/config", config.String(), 0o600)
	o.Must("sh", "-c", `echo "10.201.0.11 $(cat /root/other.pub)" >/root/.ssh/wrong`)
	for _, n := range o.nodes {
		o.first = append(o.first, n.whole())
	}
	return o
}

// whole is all that gpuadm ssh and what it runs could touch, without gpuadm's journal.
func (n node) whole() lab.Tree {
	n.t.Helper()
	return n.Tree([]string{"/etc", "/usr", "/var", "/home", "/root", "/opt", "/srv", "/tmp"}, state)
}

// ssh runs gpuadm ssh and wants an exit code.
func (o *office) ssh(exit int, args ...string) lab.Result {
	o.t.Helper()
	r := o.gpuadm(exit, append([]string{"ssh"}, args...)...)
	o.t.Logf("gpuadm ssh %s: %s", strings.Join(args, " "), r)
	return r
}

// clean wants nothing to run or lie about on the nodes.
func (o *office) clean() {
	o.t.Helper()
	for _, n := range o.nodes {
		found := func() string {
			return n.Exec("sh", "-c", "pgrep -a gpuadm; systemctl list-units --all --no-legend 'gpuadm*'; "+
				"find / -xdev \\( -path /proc -o -path /sys \\) -prune -o -name '*gpuadm*' -print; find /run /dev/shm /tmp -name '*gpuadm*'").Stdout
		}

		left := func() []string {
			return slices.DeleteFunc(strings.Split(strings.TrimSpace(found()), "\n"), func(line string) bool {
				return line == "" || strings.Contains(line, "gpuadm-lab") || strings.HasPrefix(line, "/etc/gpuadm") || strings.HasPrefix(line, state) || line == "/run/gpuadm.lock" || line == "/run/gpuadm-modules.json"
			})
		}

		if !eventually(func() bool { return len(left()) == 0 }) {
			o.t.Errorf("%s: left behind: %q", n.Options.Name, left())
		}
	}
}

// same wants the nodes to be as at first.
func (o *office) same() {
	o.t.Helper()
	o.clean()
	for i, n := range o.nodes {
		check.None(o.t, o.first[i].Diff(n.whole()), "%s is not as at first:", n.Options.Name)
	}
}

// wants wants texts in a result.
func wants(t *testing.T, r lab.Result, texts ...string) {
	t.Helper()
	for _, text := range texts {
		check.That(t, strings.Contains(r.Stdout+r.Stderr, text), "it does not say %q: %s", text, r)
	}
}

// TestLabSSH: gpuadm ssh takes three nodes through plan, apply and undo at the same time; nothing
// stays of it, and a secret of the spec is in no log, no argv and no file.
func TestLabSSH(t *testing.T) {
	o := newOffice(t, 3)
	all := []string{"n1", "r2", "n3"}
	for _, n := range o.nodes {
		n.Must("systemd-run", "--unit=watch-argv", "--property=TimeoutStopSec=5s", "sh", "-c", "while sleep 0.1; do grep -aohe plante[d] -e serve-ss[h] /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; done >/run/watched")
	}
	r := o.ssh(0, append(all, "--", "facts", "-o", "json")...)
	wants(t, r, "n1: {", "r2: {", "n3: {")
	o.same()
	r = o.ssh(0, append(all, "--", "plan", "-f", spec)...)
	wants(t, r, "n1: debian 12", "r2: ", "n3: ")
	o.same()
	o.ssh(3, append(all, "--", "plan", "--exit-code", "-f", spec)...)
	r = o.ssh(0, append(all, "--", "apply", "-f", spec)...)
	wants(t, r, "n1: ", "r2: ", "n3: ", "made in")
	for _, n := range o.nodes {
		n.configured()
		n.working()
	}

	o.clean()
	var answer struct {
		Host    string
		Exit    int
		Answers []json.RawMessage
	}
	r = o.ssh(0, append([]string{"-o", "json"}, append(all, "--", "status", "-f", spec)...)...)
	hosts := map[string]bool{}
	for line := range strings.Lines(r.Stdout) {
		err := json.Unmarshal([]byte(line), &answer)
		check.That(t, err == nil && answer.Exit == 0 && len(answer.Answers) == 1, "the JSON answer: %v %+v", err, answer)
		hosts[answer.Host] = true
	}

	check.That(t, len(hosts) == 3, "the JSON answers: %s", r)
	o.ssh(0, append(all, "--", "undo", "--yes")...)
	o.same()

	for _, n := range o.nodes {
		n.Must("systemctl", "stop", "watch-argv")
		n.Must("journalctl", "--sync")
		watched := n.Get("/run/watched")
		check.That(t, !strings.Contains(watched, planted) && strings.Contains(watched, "serve-ssh"),
			"%s: a secret in an argv or environment, or none was seen at all", n.Options.Name)
		r := n.Exec("grep", "-rl", "--devices=skip", planted, "/run", "/tmp", "/var/log", "/home", "/root", "/var/lib/gpuadm")
		check.That(t, r.Stdout == "", "%s: the secret lies in %s", n.Options.Name, r.Stdout)
		r = n.Exec("sh", "-c", "journalctl --no-pager | grep "+planted)
		check.That(t, r.Exit == 1, "%s: the secret is in the journal: %s", n.Options.Name, r)
	}
}

// TestLabSSHTroubles: each machine that cannot be used is said why, and the others are done.
func TestLabSSHTroubles(t *testing.T) {
	o := newOffice(t, 4)
	o.Listen("127.0.0.1:2222") // nothing answers there
	o.nodes[1].Must("mv", "/usr/bin/sudo", "/usr/bin/sudo-away")
	o.nodes[2].Must("sh", "-c", "mv /usr/bin/uname /usr/bin/uname-away; printf '#!/bin/sh\\necho aarch64\\n' >/usr/bin/uname; chmod 755 /usr/bin/uname")
	// A broken machine: /tmp, /var/tmp and /run are noexec, home is full, PATH is wrong, and the
	// login shell is talkative.
	o.nodes[3].Must("sh", "-ec", `for dir in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o noexec,mode=1777 none $dir; done
mount -t tmpfs -o size=64k,mode=755 none /home/op
mkdir -m 700 /home/op/.ssh; cp /root/.ssh/authorized_keys /home/op/.ssh; chown -R op /home/op
printf 'export PATH=/nowhere\necho hello\n' >/home/op/.bashrc; chown op /home/op/.bashrc; dd if=/dev/zero of=/home/op/full bs=1k count=100 || :
mount -t tmpfs -o noexec,mode=755 none /run/lock`)
	r := o.ssh(1, "n1", "down", "wrong", "hang", "n2", "n3", "n4", "--", "plan", "-f", spec)
	for host, text := range map[string]string{
		"down": "cannot connect", "wrong": "cannot connect", "hang": "no answer within", "n2": "cannot become root", "n3": "none for aarch64",
	} {
		i := strings.Index(r.Stderr, "\n"+host+": gpuadm: ")
		check.That(t, (i >= 0 || strings.HasPrefix(r.Stderr, host+": gpuadm: ")) && strings.Contains(r.Stderr[max(0, i):], text), "%s: no %q in %s", host, text, r.Stderr)
	}

	check.Says(t, r.Stdout, "n1: ", "n4: ")
	wants(t, r, "Host key verification failed", "No route to host")
	for _, verb := range [][]string{{"status", "-f", spec}, {"facts"}, {"version"}} {
		o.gpuadm(map[string]int{"status": 3}[verb[0]], append([]string{"ssh", "n4", "--"}, verb...)...)
	}
	o.nodes[1].Must("mv", "/usr/bin/sudo-away", "/usr/bin/sudo")
	o.nodes[2].Must("mv", "/usr/bin/uname-away", "/usr/bin/uname")
	o.nodes[3].Must("umount", "/home/op", "/tmp", "/var/tmp", "/dev/shm", "/run/lock")
	o.same()
}

// held starts an apply on the nodes that cannot finish a change of its own, and waits until it is
// at it.
func (o *office) held(args ...string) *lab.Task {
	o.t.Helper()
	for _, n := range o.nodes {
		n.Put(hold, "", 0o644)
	}
	// A shell has its background jobs ignore SIGINT, and a test may be such a job: sh(1).
	ssh := []string{"env", "--default-signal=INT", "gpuadm", "ssh"}
	task := o.Go(append(ssh, args...)...)
	for _, n := range o.nodes {
		must.That(o.t, eventually(func() bool {
			return n.Property(daemon, "ActiveState") == "activating"
		}), "%s does not restart containerd", n.Options.Name)
	}

	return task
}

func (o *office) release() {
	o.t.Helper()
	for _, n := range o.nodes {
		n.Must("rm", hold)
	}
}

// TestLabSSHInterrupted: a connection that is cut stops no run, Ctrl-C neither; the program is
// removed when the run has ended, and status says how.
func TestLabSSHInterrupted(t *testing.T) {
	o := newOffice(t, 2)
	for _, n := range o.nodes {
		n.Put(specFile, specText, 0o644)
	}
	o.first = nil
	for _, n := range o.nodes {
		o.first = append(o.first, n.whole())
	}
	for _, cut := range [][]string{{"pkill", "-KILL", "-x", "ssh"}, {"pkill", "-INT", "-x", "gpuadm"}} {
		task := o.held("n1", "r2", "--", "apply")
		o.Must(cut...)
		r := task.Wait()
		check.That(t, cut[1] != "-KILL" || (r.Exit == 75 && strings.Count(r.Stderr, "the run goes on there") == 2), "after the connection was cut: %s", r)
		for _, n := range o.nodes {
			if n.Exec("sh", "-c", "systemctl list-units --no-legend 'gpuadm-ssh-*' | grep -q running").Exit != 0 {
				t.Errorf("%s: no run continues: %s", n.Options.Name, n.Exec("systemctl", "list-units", "--all", "gpuadm*"))
			}
		}

		o.release()
		for _, n := range o.nodes {
			check.That(t, eventually(func() bool {
				return n.Exec("pgrep", "-x", "gpuadm").Exit != 0
			}), "%s: the run did not end", n.Options.Name)
		}

		o.clean()
		o.ssh(0, "n1", "r2", "--", "status")
		o.ssh(0, "n1", "r2", "--", "undo", "--yes")
		o.same()
	}
}
